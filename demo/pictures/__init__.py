"""`make picture`: the pictures of README and of docs/start, each drawn from what a broker returns and has in its files.

`partition` is a partition of flights with open transactions. `open`, `commit-order` and `cut` are small topics with a
few records, for the page that explains transactions.
"""

CONTINUED_S = 60.0  # How long a call of a client may take.
