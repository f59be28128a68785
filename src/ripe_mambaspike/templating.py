"""HTML pages from Jinja2 templates: values are escaped, and only the page's own style and script may run."""

import base64
import hashlib
from functools import lru_cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


@lru_cache
def template_environment(package: str) -> Environment:
    """The templates of `package` and those of all, with escaping on and missing values an error."""
    loader = ChoiceLoader([PackageLoader(package), PackageLoader("ripe_mambaspike")])
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def render_page(package: str, template: str, *, style: str, script: str, images: str = "", **values: Any) -> bytes:
    """Render a page that loads nothing from elsewhere.

    `style` and `script` name files beside the template. The page's Content-Security-Policy allows exactly these two
    texts, and images from `images` (for example "data:").
    """
    environment = template_environment(package)
    texts = {}
    for kind, name in (("style", style), ("script", script)):
        source = environment.loader.get_source(environment, name)[0] if environment.loader else ""
        texts[kind] = Markup(source)
    policy = ["default-src 'none'"] + [f"img-src {images}"] * bool(images)
    policy += [f"{kind}-src '{_digest(text)}'" for kind, text in texts.items()]
    page = environment.get_template(template).render(policy=Markup("; ".join(policy)), **texts, **values)
    return page.encode("utf-8", "replace")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
