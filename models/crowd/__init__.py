"""Labels by many workers, most of them missing: Dawid and Skene's model of a crowd.

    h_i ~ Categorical(π),                          the class of item i
    label of item i by worker w ~ Categorical(C_w[:, h_i])

Every worker has a confusion matrix, and labels of an item are independent given its class. It is a latent-class model
whose columns are workers. The labels of a worker are numbered like the classes, so that the diagonal of `C_w` says how
often the worker is right.

`fit` deals the workers into three groups, whose mean labels are three views of the class, decomposes their moments, and
finds every worker by regression on the views. `refine` is EM, from there or from a majority vote, with a Dirichlet
prior on the confusion matrices.

Identifiable when each of three groups tells the classes apart, and named when workers are right more often than they
make any one mistake, on average: single workers may be spammers, or wrong on purpose.

    from latensor.models import crowd

    file = crowd.read_labels("labels.txt")                            # item worker label, one row each
    fit = crowd.fit(jax.random.key(0), file.labels, len(file.classes))
    better = crowd.refine(fit.params, file.labels)
    classes = crowd.posterior(better.params, file.labels).argmax(1)   # one per item
    accuracy = crowd.worker_accuracy(better.params, file.labels)

Source: Dawid, Skene (1979), Maximum likelihood estimation of observer error-rates using the EM algorithm; Zhang, Chen,
Zhou, Jordan (2014), Spectral methods meet EM; Tan, Mukherjee (2017), Partitioned tensor factorizations for learning
mixed membership models, §6.2.
"""

from latensor.models.crowd.data import as_data
from latensor.models.crowd.em import refine
from latensor.models.crowd.files import LabelFile, read_labels
from latensor.models.crowd.likelihood import (
    WorkerAccuracy,
    log_likelihood,
    majority_vote,
    posterior,
    worker_accuracy,
)
from latensor.models.crowd.params import (
    DawidSkene,
    component_columns,
    num_parameters,
    permute,
    population_moments,
    sample,
)
from latensor.models.crowd.spectral import fit, fit_moments
from latensor.models.crowd.votes import Diagnostics

__all__ = [
    "DawidSkene",
    "Diagnostics",
    "LabelFile",
    "WorkerAccuracy",
    "as_data",
    "component_columns",
    "fit",
    "fit_moments",
    "log_likelihood",
    "majority_vote",
    "num_parameters",
    "permute",
    "population_moments",
    "posterior",
    "read_labels",
    "refine",
    "sample",
    "worker_accuracy",
]
