"""The operators in C++, for CPUs: how they are built and called, and the headers that they share."""
