"""The ways on from a position in a table that is read by other columns now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from airflow_provider_microbatch.sources.jdbc.moment import Made, Moment


def ways_by_others(place: Moment, now: Made, set_offset: Callable[..., str]) -> str:
    """The ways on from a moment. A time of one column tells nothing of another, and a key nothing of another key.

    :param now: the table as it is now.
    :param set_offset: as :attr:`.SourceContext.set_offset` is.
    """
    here = replace(place, below=None)
    if place.made is not None and not place.made.is_by_other_time(now):
        here = replace(here, key=None)
        which = f"what lies at {place.time} or before was read"
        what = f", which passes over what was committed late, and rows of {place.time} itself that were not read"
    else:
        which, what = (
            "the columns were merely renamed, or have the values that those had",
            ", which passes over what was committed late",
        )
    begin, here_on = (
        set_offset(moment.text(), skip=True, reread=place.has_rows_of(now)) for moment in (Moment(), here)
    )
    return (
        f"Where {which}: `{here_on}`{what}. Where its rows are to be read from the first, also those that were read: "
        f"`{begin}`."
    )
