"""The first scene: a year of flights through crashes of everything, and the proof that none was lost."""

TOPIC = "flights"
NAMED_TOPIC = "flights-named"  # written by the Spark pipeline: each flight with its airline's name
DELAYS_TOPIC = "delays"  # and the sums of each carrier, as they grow
