"""Write results.json, which README.md shows: `record.py BUILD_S IMAGE_BYTES BASE_BYTES`.

Called by test.sh with CONTAINER_TEST_RECORD=1, after a build of the CPU image without any cache.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from service.bench.environment import describe_environment


def main() -> None:
    """Measurements from the command line, conditions from the machine."""
    build_s, image_bytes, base_bytes = map(int, sys.argv[1:])
    about = describe_environment("CONTAINER_TEST_RECORD=1 make container-test", packages=())
    # Other work makes the build slower: the mean load of the last five minutes tells.
    found = {
        **about,
        "load": round(os.getloadavg()[1], 1),
        "cpu": {"build_s": build_s, "image_bytes": image_bytes, "base_bytes": base_bytes},
    }
    Path(__file__).with_name("results.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
