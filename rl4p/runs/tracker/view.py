"""A table of MLflow's web page whose first columns are those that differ between runs.

By default the page shows the columns Source, Models and Dataset of all runs, and hides the runs of
a sweep below their parent. A *shared view*, as the page's button "Share" makes one, is an
experiment tag that holds the columns, their order and a filter. A link with its name opens it.
"""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rl4p.runs.tracker.mirror import PARENT, mlflow_key

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

VIEW = "mlflow.sharedViewState."
REWARD = "reward/mean"


def page(experiment: str, parent: str) -> str:
    """Returns the address of the runs of a sweep, below MLflow's address.

    It opens "Model training". Without ``workflowType`` MLflow 3.17 opens the view that the browser
    showed last, and at first "GenAI".
    """
    view = f"workflowType=machine_learning&viewStateShareKey={parent}"
    return f"#/experiments/{experiment}/runs?{view}&compareRunsMode=TABLE"


def links(experiment: str, parent: str) -> str:
    """Returns links, in Markdown, to the table and to the charts of the runs of a sweep."""
    table = page(experiment, parent)
    charts = table.replace("=TABLE", "=CHART")
    return f"[Table of the runs, what differs first]({table}) · [Charts of the runs]({charts})"


def share_view(
    client: "MlflowClient",
    experiment: str,
    parent: str,
    keys: Sequence[str],
    children: Iterable["Run"],
) -> None:
    """Saves the view of the runs of a sweep.

    Args:
      client: a client of the store.
      experiment: the id of the experiment.
      parent: the id of the sweep's run, which names the view.
      keys: the parameters that differ, which become the first columns.
      children: the runs so far. Their evaluations become the next columns.
    """
    names = {name for child in children for name in child.data.metrics}
    scores = sorted(x for x in names if x.startswith("eval/") and not x.endswith("/prompts"))
    client.set_experiment_tag(experiment, VIEW + parent, json.dumps(view(parent, keys, scores)))


def view(parent: str, keys: Sequence[str], scores: Sequence[str]) -> dict[str, Any]:
    """Returns the state of the page, in its own terms."""
    columns = [column("params", mlflow_key(key)) for key in keys]
    columns += [column("metrics", name) for name in [*scores[:6], REWARD]]
    fixed = [column("attributes", "Run Name"), "runDateAndNestInfo"]
    return {
        "searchFilter": f"tags.{PARENT} = '{parent}'",
        "orderByKey": column("metrics", scores[0] if scores else REWARD),
        "orderByAsc": False,
        "selectedColumns": columns,
        "columnOrder": [*fixed, *columns],
    }


def column(kind: str, name: str) -> str:
    return f"{kind}.`{name}`"
