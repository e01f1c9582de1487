"""Export of stored episodes: the selection of records, and one module per file format.

`formats` is the table of formats that `agentrl trace export --format` offers.
"""

from agentrl_core.data.export.selection import Selection, taken_again
from agentrl_core.data.export.sft import export_rows

__all__ = ["Selection", "export_rows", "taken_again"]
