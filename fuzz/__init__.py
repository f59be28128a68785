"""The project's fuzzer: damaged and hostile inputs for everything that reads a file, a stream or a request.

`make fuzz SECONDS=60` mutates small valid inputs and hands them to the package. Every target runs in a child process
with limits on time and memory. A finding is an abort, a hang, too much memory, an exception that is not the package's
own, or an answer that is wrong; its input is kept under `.fuzz/findings`. Once mended it moves to `fuzz/cases/TARGET`,
where `make test` tries it again.
"""
