"""The views of MLflow's page that links open: the columns, and the charts that come first.

By default the page shows the columns Source, Models and Dataset of all runs, hides the runs of a
sweep below their parent, and begins the charts with those of `advantage/`. A *shared view*, as the
page's button "Share" makes one, is an experiment tag that holds the columns, their order, a filter
and the charts. A link with the name of the view opens it.
"""

import json
import shlex
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow import MlflowClient

VIEW = "mlflow.sharedViewState."
ALL_RUNS = "rl4p"  # the view of all runs of an experiment
REWARD = "reward/mean"
PARAMETERS = ("model", "data", "advantage", "update", "seed")  # the columns of all runs
# The charts that come first, after the evaluations: whether it learns, and whether it is healthy.
CHARTS = (
    REWARD,
    "rollout/response_tokens",
    "rollout/truncated",
    "update/entropy",
    "rollout/logprob_gap_mean",
    "update/grad_norm",
)
FIRST = "What matters"  # the section of these charts
SECTIONS = ("reward", "rollout", "update", "advantage", "time")  # and then the others
MOST_SCORES = 6


def page(experiment: str, name: str, *, charts: bool = False) -> str:
    """Returns the address of a view, below MLflow's address.

    It opens "Model training". Without ``workflowType`` MLflow 3.17 opens the part that the browser
    showed last, and at first "GenAI", which is empty.
    """
    mode = "CHART" if charts else "TABLE"
    view = f"workflowType=machine_learning&viewStateShareKey={name}"
    return f"#/experiments/{experiment}/runs?{view}&compareRunsMode={mode}"


def where_to_look(uri: str, page: str, what: str = "The runs in MLflow") -> str:
    """Returns a sentence with the address of a page of the tracking store `uri`."""
    if uri.startswith("http"):
        return f"{what}: {uri.rstrip('/')}/{page}"
    command = shlex.join(["mlflow", "ui", "--backend-store-uri", uri])
    return f"{what} ({command}): http://127.0.0.1:5000/{page}"


def share_view(client: "MlflowClient", experiment: str, name: str, state: dict[str, Any]) -> None:
    """Saves a view under a name."""
    client.set_experiment_tag(experiment, VIEW + name, json.dumps(state))


def view(
    parameters: Sequence[str], metrics: Collection[str], *, parent: str | None = None
) -> dict[str, Any]:
    """Returns the state of the page, in its own terms.

    Args:
      parameters: the first columns, by their keys in MLflow.
      metrics: the metrics of the runs. The evaluations are the next columns.
      parent: the id of a sweep's run, to show its runs alone, the best first. Without it all runs
        are shown, the newest first.
    """
    scores = sorted(name for name in metrics if name.startswith("eval/"))
    scores.sort(key=lambda name: not name.endswith(("/pass_at_1", "/loss")))  # these come first
    scores = scores[:MOST_SCORES]
    measures = [f"metrics.`{name}`" for name in [*scores, REWARD]]
    columns = [*(f"params.`{key}`" for key in parameters), *measures]
    return {
        "searchFilter": f"tags.mlflow.parentRunId = '{parent}'" if parent else "",
        "orderByKey": measures[0] if parent else "attributes.start_time",
        "orderByAsc": False,
        "selectedColumns": columns,
        "columnOrder": ["attributes.`Run Name`", "runDateAndNestInfo", *columns],
        "isAccordionReordered": True,  # otherwise the page sorts the sections
        # The page adds the charts of its other metrics to the sections.
        "compareRunSections": [
            {
                "uuid": name.lower().replace(" ", "-"),
                "name": name,
                "display": True,
                "isReordered": True,
                "deleted": False,
                "isGenerated": name != FIRST,
            }
            for name in (FIRST, *SECTIONS)
        ],
        "compareRunCharts": [
            chart(name) for name in [*scores, *CHARTS] if name in metrics or name == REWARD
        ],
    }


def chart(metric: str) -> dict[str, Any]:
    """Returns the chart of a metric over the steps, in the first section."""
    section = FIRST.lower().replace(" ", "-")
    return {
        "uuid": f"{section}-{metric}",
        "type": "LINE",
        "metricKey": metric,
        "metricSectionId": section,
        "runsCountToCompare": 10,
        "deleted": False,
        "isGenerated": False,
        "xAxisKey": "step",
        "selectedXAxisMetricKey": "",
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "range": {},
        "lineSmoothness": 0,
        "ignoreOutliers": False,
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }
