"""Hold all results of a run in a compact form, for the curves and tables of the status page.

`evaluations` folds the journal, `curve` draws one metric from it, `details` reads what is known of one evaluation or of
two, with the matrices of `confusion`, and `reader` is the thread that reads shared storage for them.
"""

from sidecar.publishing.evaluation_archive.details import DetailsReader
from sidecar.publishing.evaluation_archive.reader import ArchiveReader

__all__ = ["ArchiveReader", "DetailsReader"]
