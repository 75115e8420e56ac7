"""The same verb has the same signature in all models."""

import inspect

import pytest

from tests.models.contract import (
    DATA_KEYWORDS,
    GENERIC,
    OWN_DEFAULTS,
    REQUIRED,
    every_model,
    every_verb,
    parameters_of,
    positional,
    verbs_of,
)
from tests.models.contract_models import MODELS


@every_model
def test_every_model_has_all_verbs(model):
    assert {*REQUIRED, *(() if model.node else GENERIC)} <= set(verbs_of(model))
    assert model.module.__all__ == sorted(model.module.__all__)


@every_verb
def test_arguments_that_define_a_verb_come_first_and_all_others_by_keyword(model, verb):
    kinds = [(name, parameter.kind) for name, parameter in parameters_of(model, verb).items()]
    split = len(positional(model, verb))
    assert [name for name, _ in kinds[:split]] == list(positional(model, verb))
    assert all(kind is inspect.Parameter.KEYWORD_ONLY for _, kind in kinds[split:])


@every_verb
def test_keywords_of_the_data_come_before_options(model, verb):
    keywords = list(parameters_of(model, verb))[len(positional(model, verb)) :]
    first = [*DATA_KEYWORDS, "method", "num_restarts", "tol", "max_iters"]
    present = [name for name in first if name in keywords]
    assert keywords[: len(present)] == present


@pytest.mark.parametrize("verb", sorted({verb for model in MODELS for verb in verbs_of(model)}))
def test_the_same_keyword_has_the_same_default_and_place_in_all_models(verb):
    signatures = [parameters_of(model, verb) for model in MODELS if verb in verbs_of(model)]
    defaults, before = {}, set()
    for parameters in signatures:
        names = list(parameters)
        before |= {(one, two) for i, one in enumerate(names) for two in names[i + 1 :]}
        for name, parameter in parameters.items():
            if name not in OWN_DEFAULTS:
                defaults.setdefault(name, set()).add(parameter.default)
    assert {name: values for name, values in defaults.items() if len(values) > 1} == {}
    assert not [pair for pair in before if pair[::-1] in before]


@every_model
def test_data_have_the_keywords_of_fit(model):
    if not model.node:
        taken = {name for name in parameters_of(model, "fit") if name in DATA_KEYWORDS}
        assert set(parameters_of(model, "as_data")) == {"x", *taken}


@every_model
def test_log_likelihood_takes_a_key(model):
    assert parameters_of(model, "log_likelihood")["key"].default is None
