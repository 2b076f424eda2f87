"""Health check of a container: exit 0 if the address answers with 200 within four seconds."""

import sys
from urllib.request import urlopen

with urlopen(sys.argv[1], timeout=4) as response:  # noqa: S310 - compose.yaml names the address
    sys.exit(response.status != 200)
