"""Placement of rows: pages that the interactions of users read whose interactions the placement has not seen."""

from __future__ import annotations

from collections.abc import Callable

from harness.model import Bound, Case, Context, Leg, Measure

FILES = {"gowalla": "gowalla_adj.npz", "lastfm": "lastfm.csv.gz"}
ROWS_A_PAGE = {256: 15, 128: 31, 64: 63}
"""By bytes of a row: 4,092 bytes of a page hold rows."""


def placement(context: Context, name: str) -> Case:
    path = f"$OUTCORE_REAL_DATA/{FILES[name]}"
    spec = {"path": path, "seed": 0}
    legs = [
        Leg(f"outcore, rows of {size} B", "placement.pages", {**spec, "rows_a_page": rows}) for size, rows in ROWS_A_PAGE.items()
    ]
    others = [
        Leg(f"outcore, {what}, rows of 128 B", "placement.pages", {**spec, "rows_a_page": ROWS_A_PAGE[128], **given})
        for what, given in (("by frequency", {"method": "frequency"}), ("a tenth of replicas", {"replicas": 0.1}))
    ]
    return Case(
        f"placement-{name}",
        f"items that a user of {name} has chosen are a bag; the placement is learned from half of the users, and pages are "
        "counted for the others",
        "IOPS",
        [*legs, *others],
        [],
        Bound(note="the pages that the same tool reaches where it learns from the users that it is counted for"),
        measures=(
            *(
                measure
                for leg in legs
                for measure in (
                    Measure(leg.name, "fewer", f"{leg.name}: rows in their given order", at_least=2.0),
                    Measure(leg.name, "of_own", f"{leg.name}: learned from the users that are counted", at_least=0.9),
                    Measure(leg.name, "own_fewer", f"{leg.name}: rows in their given order; learned from the users counted"),
                    Measure(leg.name, "fewer_than_shuffled", f"{leg.name}: rows in random order"),
                )
            ),
            *(Measure(leg.name, "fewer", f"{leg.name}: rows in their given order") for leg in others),
        ),
        needs=(path,),
        notes=(
            "Items that users have chosen together are near each other in the given order already, so that it reads fewer pages "
            "than a random one. Of each leg, one of the two targets is to be reached. The rate counts items of users that are "
            "counted, over the time in which the order is learned. Results do not depend on the round.",
        ),
    )


BUILDERS: dict[str, Callable[[Context], Case]] = {
    f"placement-{name}": (lambda context, name=name: placement(context, name))  # type: ignore[misc]
    for name in FILES
}
