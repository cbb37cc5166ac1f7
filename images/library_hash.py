"""Print the content hash of the library in this checkout. The library need not be installed."""

import sys
from pathlib import Path
from types import ModuleType

# The folders of the repository are the packages of kfp_distributed.
package = ModuleType("kfp_distributed")
package.__path__ = [str(Path(__file__).parent.parent)]
sys.modules["kfp_distributed"] = package

from kfp_distributed.library.content import content_hash, read_library  # noqa: E402

print(content_hash(read_library()))
