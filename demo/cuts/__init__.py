"""The second scene: a transaction is left open, and who waits for it; and what a join sees, by offsets and by cut."""

FLIGHTS, WEATHER = "flights", "weather"
ORDINARY = (FLIGHTS, WEATHER)
COMMIT_ORDERED = (
    "flights-by-commit",
    "weather-by-commit",
)  # the same records, in topics with stablelog.order=commit
FLIGHTS_PARTITIONS = 4  # by carrier
WEATHER_PARTITIONS = 3  # by airport
