"""Which transactions there are: an hour of an airport's flights, with its weather; and some hours that come late."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from demo.flights import AIRPORTS, Flight, Weather, read_flights, read_weather

LATE_FROM, LATE_TO = 0.15, 0.18  # of all hours: they are written by somebody who is slow, in one transaction
LATE = "late"


@dataclass(slots=True)
class Hour:
    """What happened at an airport in an hour."""

    airport: str
    name: str
    flights: list[Flight] = field(default_factory=list)
    weather: list[Weather] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it is written: to which of the two kinds of topics, with which key, and what it says."""

    is_weather: bool
    airport: str
    key: str
    value: dict[str, object]

    def encode(self, *, doomed: bool) -> bytes:
        """The record's value. `doomed` marks what is written in a transaction that will not be committed."""
        return json.dumps(self.value | {"doomed": doomed}, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Work:
    """A transaction that is to be written.

    Attributes:
        name: by which its records are known again.
        place: when, counted in hours since the first.
        records: flights, and then the weather.
    """

    name: str
    place: int
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is to be written.

    Attributes:
        hours: their names, in order.
        works: by airport.
        late: the one transaction of the slow writer, over all airports.
    """

    hours: tuple[str, ...]
    works: dict[str, list[Work]]
    late: Work

    def all(self) -> Iterator[Work]:
        """Every transaction."""
        yield self.late
        for works in self.works.values():
            yield from works


def plan(row_count: int) -> Plan:
    """Transactions for the first rows of the file, and the weather of their hours.

    Every record says how many there are of its transaction in each topic, so that whoever reads it can tell whether
    all are there.
    """
    found: dict[tuple[str, str], Hour] = {}
    for flight in read_flights(row_count):
        found.setdefault((flight.hour, flight.origin), Hour(flight.origin, flight.hour)).flights.append(
            flight
        )
    last = max(name for name, _ in found)
    for weather in read_weather():
        if weather.hour <= last:
            key = weather.hour, weather.origin
            found.setdefault(key, Hour(weather.origin, weather.hour)).weather.append(weather)
    names = tuple(sorted({name for name, _ in found}))
    late_names = set(names[int(len(names) * LATE_FROM) : max(int(len(names) * LATE_TO), 2)])
    late_hours: list[Hour] = []
    works: dict[str, list[Work]] = defaultdict(list)
    for place, name in enumerate(names):
        for airport in AIRPORTS:
            hour = found.get((name, airport))
            if hour is None:
                continue
            if name in late_names:
                late_hours.append(hour)
            else:
                works[airport].append(_work(f"{airport} {name}", place, [hour]))
    return Plan(names, dict(works), _work(LATE, int(len(names) * LATE_FROM), late_hours))


def _work(name: str, place: int, hours: list[Hour]) -> Work:
    sizes = {
        "flights": sum(len(hour.flights) for hour in hours),
        "weather": sum(len(hour.weather) for hour in hours),
    }

    def record(row: Flight | Weather, key: str, **more: object) -> Record:
        told = {"txn": name, "sizes": sizes, "origin": row.origin, "hour": row.hour}
        return Record(isinstance(row, Weather), row.origin, key, told | more)

    flights = [
        record(
            flight,
            flight.carrier,
            carrier=flight.carrier,
            dep_delay=flight.departure_delay,
            has_weather=bool(hour.weather),
        )
        for hour in hours
        for flight in hour.flights
    ]
    weather = [
        record(each, each.origin, temp=each.temperature, visib=each.visibility)
        for hour in hours
        for each in hour.weather
    ]
    return Work(name, place, (*flights, *weather))
