'use strict';
// Show only the rows in which a value of ours differs from the printed one.
const only = document.getElementById('only');
only.addEventListener('change', () => document.body.classList.toggle('only', only.checked));
