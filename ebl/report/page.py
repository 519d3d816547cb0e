"""A report as one HTML page that needs nothing else."""

from __future__ import annotations

import datetime

from ebl.report.collect import Report
from ebl.report.lessons import MEANING
from ebl.report.svg import slug, style, swatch
from ebl.version import __version__

LOOKS = {
    "holds": ("good", "✓"),
    "in part": ("fair", "◐"),
    "mixed": ("warn", "±"),
    "opposite": ("bad", "✗"),
    "alike": ("calm", "="),
    "mostly alike": ("calm", "≈"),
    "apart": ("fair", "≠"),
    "open": ("calm", "?"),
    "one seed": ("calm", "·"),
    "no runs": ("calm", "–"),
    "not asked": ("calm", "–"),
}


def to_html(report: Report) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    templates = Environment(
        loader=PackageLoader("ebl.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    panels, not_drawn = report.drawn
    looks = sorted({line.look for panel in panels for line in panel.lines})
    return templates.get_template("page.html.j2").render(
        report=report,
        panels=panels,
        not_drawn=not_drawn,
        looks=LOOKS,
        meaning=MEANING,
        made=datetime.date.today().isoformat(),
        version=__version__,
        style=Markup(style() + style("page.css")),
        capital=lambda text: text[:1].upper() + text[1:],
        safe=Markup,  # pictures: svg.py escapes what it was given
        slugs=[slug(look) for look in looks],
        slug=slug,
        swatch=lambda look: Markup(swatch(look)),
        split=lambda text: text.partition(" ± "),
    )
