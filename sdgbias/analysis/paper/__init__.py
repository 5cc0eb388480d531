"""The papers' tables and figures by name, each built from one results file: our values beside the
printed ones where the same model was scored. ``data/tables_<suite>.yaml`` describes them.

* numbers: those of the results, of this program and of the papers, by one key
* results: what a results file holds, and why a number is missing
* tables, formats: the join by a table's description, and its files
"""

from sdgbias.analysis.paper.results import load as load
from sdgbias.analysis.paper.tables import build as build
from sdgbias.analysis.paper.tables import chosen as chosen
from sdgbias.analysis.paper.tables import items as items
