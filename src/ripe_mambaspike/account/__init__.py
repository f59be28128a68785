"""Parameters, operations, bytes and energy of a network. `ripe_mambaspike.account(...)` is `account.run.account`."""

from ripe_mambaspike.callable_package import make_callable

make_callable(__name__, "run", "account")
