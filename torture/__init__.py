"""`make torture`: fault injection for the commands that write files.

Every command is run once without faults; that is its reference. Then it is killed at random times and at every change
it makes on disk, run on a full and on a read-only disk, concurrently with itself, with changing sources, with a clock
that jumps, and with power losses that discard everything not synced. Each time it is run again until it succeeds, and
the result must be bit-identical to the reference; a run that cannot continue must exit with code 2 and one message.
"""
