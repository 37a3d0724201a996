"""The engine process: `python -m parlay.backend FD`, as a front starts it.

FD is its end of the socket; what is to be served comes over it. Ends with its front.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys
from collections.abc import Callable

from parlay.backend import wire
from parlay.backend.heap import share_heap
from parlay.backend.host import Host
from parlay.backend.link import Link
from parlay.backend.serving import Post, Serving
from parlay.deployment import Deployment


def open_host(hello: wire.Hello, post: Post, trouble: Callable[[str, str | None], None]) -> Host:
    """Load the model of a deployment; its passes end with a message."""
    host = Host(Deployment.model_validate(hello.deployment), post.send, trouble)
    host.engine.call(post.begin_passes).result()
    return host


def main() -> int:
    share_heap()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the front drains, and says when it is over
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    sock = socket.socket(fileno=int(sys.argv[1]))
    return Serving(Link(sock), open_host).run()


if __name__ == "__main__":
    sys.exit(main())
