"""One module a format: `recognizes(head, path)`, `open_source(path, options)`, and `encode` where it can be written.

The binary formats decode block by block with a pure function `decode(words, state) → (events, state)`, so that a whole
file and a file in pieces give the same events.
"""
