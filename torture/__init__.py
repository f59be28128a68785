"""`make torture`: kill, starve and confuse the commands that write, then look at what they left behind.

Every command is run to its end once; that is its reference. Then it is killed at random moments and at every single
change it makes on disk, run on a full and on a read-only disk, beside itself, with sources that change, a clock that
jumps and a power loss that takes all that was not synced. Each time it is run again until it ends, and the end must
have the reference's bits; a run that cannot go on must say so in one sentence and exit with 2.
"""
