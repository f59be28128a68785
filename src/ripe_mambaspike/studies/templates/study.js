// A click on a column's head sorts the table by it, numbers by value.
for (const table of document.querySelectorAll("table")) {
  table.querySelectorAll("th").forEach((head, column) => {
    let sign = -1;
    head.addEventListener("click", () => {
      sign = -sign;
      const body = table.tBodies[0];
      const key = (row) => row.cells[column].textContent;
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [parseFloat(key(a)), parseFloat(key(b))];
        return sign * (isNaN(x) || isNaN(y) ? key(a).localeCompare(key(b)) : x - y);
      });
      body.append(...rows);
    });
  });
}
