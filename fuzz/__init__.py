"""The project's fuzzer: damaged and hostile inputs for everything that reads a file, a stream or a request.

`make fuzz SECONDS=60` mutates small valid inputs and passes them to the package. Every target runs in a child process
with limits on time and memory. A finding is an abort, a hang, too much memory, an exception that is not the package's
own, or a wrong result; its input is saved under `.fuzz/findings`. Once fixed it moves to `fuzz/cases/TARGET`, where
`make test` runs it as a regression test.
"""
