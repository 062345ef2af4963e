"""The explorer: a local page to watch networks while they train, and the toy problem with sliders.

`serve(...)` shows the page until Ctrl-C. Each run trains in a process of its own (`trainer.py`), which sends messages to
the page and never waits for it. The page itself, and nothing else, needs NiceGUI, which is imported when it is served.
"""

from egalitarian.lab.explorer.server import serve
from egalitarian.lab.explorer.watched import Defaults

__all__ = ["Defaults", "serve"]
