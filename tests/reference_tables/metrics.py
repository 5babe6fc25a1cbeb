"""The table of the broker's metrics."""

from stablelog.broker.monitoring.metrics import METRICS
from tests.reference_tables import table


def tables() -> dict[str, str]:
    rows = (
        (f"`{name}`", " by ".join([kind, *([", ".join(labels)] if labels else [])]), meaning)
        for name, (kind, meaning, labels) in METRICS.items()
    )
    return {"metrics": table(("metric", "kind and labels", "meaning"), rows)}
