"""What is shown of endpoints beside their declaration: servers that are there, load, times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hadron.cli.telling import Tells

if TYPE_CHECKING:
    from hadron.client import EndpointLife, SyncClient
    from hadron.model.schema import SchemaObject


def life_row(life: EndpointLife) -> dict[str, Any]:
    """Of the table that `hadron get` prints."""
    return {
        "servers": len(life.servers) + life.more_servers,
        "in_flight": life.in_flight,
        "waiting": life.waiting,
        "answered": life.answered,
        "p50": shown_ms(life.p50_ms),
        "p99": shown_ms(life.p99_ms),
    }


def shown_ms(milliseconds: float) -> str:
    """Three digits: 0.85ms, 12.3ms, 1.02s; "" where nothing is known."""
    if not milliseconds:
        return ""
    # What would be rounded to 1,000 is of the next unit, and never 1e+03.
    if milliseconds < 999.5:
        return f"{milliseconds:.3g}ms"
    seconds = milliseconds / 1_000
    return f"{seconds:.3g}s" if seconds < 999.5 else f"{seconds:,.0f}s"


def rows_of(client: SyncClient, names: list[str]) -> dict[str, dict[str, Any]]:
    """By name, of the client's namespace; nothing of those whose leader does not answer."""
    from hadron.cli.answers import ANSWER_WITHIN_S
    from hadron.model.errors import HadronError

    found: dict[str, dict[str, Any]] = {}
    if names:
        try:
            for life in client.endpoints(within_s=ANSWER_WITHIN_S):
                found[life.name] = life_row(life)
        except HadronError:
            # The list is of what is declared; who wants more describes one, and is told.
            return {}
    return found


def _status(client: SyncClient, found: SchemaObject) -> dict[str, Any]:
    from hadron.cli.answers import ANSWER_WITHIN_S
    from hadron.model.errors import HadronError
    from hadron.model.services import EndpointSpec

    if not isinstance(found.spec, EndpointSpec):
        return {}
    try:
        (life,) = client.endpoints(found.name, within_s=ANSWER_WITHIN_S)
    except (HadronError, ValueError) as error:
        return {"live": {"error": f"{error}" or "its leader knows nothing of it yet"}}
    servers = [
        {
            "name": each.name,
            "peer": each.peer,
            **({"region": each.region} if each.region else {}),
            "in_flight": f"{each.in_flight} of {each.max_in_flight}",
            "answered": each.answered,
            "failed": each.failed,
            "p50": shown_ms(each.p50_ms),
            "p99": shown_ms(each.p99_ms),
            **({"leaving": True} if each.is_leaving else {}),
        }
        for each in life.servers
    ]
    more = {"more_servers": life.more_servers} if life.more_servers else {}
    row = {**life_row(life), "failed": life.failed}
    return {"live": {**row, "servers": servers, **more}}


TELLS = Tells(status=_status)
