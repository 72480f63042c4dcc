"""The file of tenants."""

from __future__ import annotations

import pytest

from gateway.core.admission.classes import ServiceClass
from gateway.core.tenants import Tenant, TenantFileError, read_tenants
from gateway.core.weights import Weights

FILE = """
[default]
class = "batch"
requests_per_s = 1

[tenants.alice]
class = "interactive"
weights = "ttft=2,tpot=1"
share = 3
tokens_per_min = 60000
max_in_flight = 8
models = ["llama"]
isolate = true

[tenants.bob]
"""


def test_a_tenant_is_as_the_file_says_and_else_as_the_default() -> None:
    book = read_tenants(FILE)
    alice = book.of("alice")
    assert (alice.service, alice.weights, alice.share) == (ServiceClass.INTERACTIVE, Weights(2.0, 1.0), 3.0)
    assert (alice.requests_per_s, alice.tokens_per_min, alice.max_in_flight) == (1.0, 60000.0, 8)
    assert alice.may_use("llama")
    assert not alice.may_use("other")
    assert alice.isolate is True
    assert book.of("bob") == Tenant("bob", ServiceClass.BATCH, requests_per_s=1.0)


def test_one_that_is_not_named_has_the_defaults_under_its_own_name() -> None:
    assert read_tenants(FILE).of("carol") == Tenant("carol", ServiceClass.BATCH, requests_per_s=1.0)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[tenants.a]\nclass = 'fast'", "tenants.a.class: must be one of interactive, standard, batch"),
        ("[tenants.a]\nshare = 0", "tenants.a.share: must be a number above 0"),
        ("[tenants.a]\nrequests_per_s = -1", "tenants.a.requests_per_s: must be a number of 0 or more"),
        ("[tenants.a]\ntokens_per_min = true", "tenants.a.tokens_per_min: must be a number of 0 or more"),
        ("[tenants.a]\nmax_in_flight = 1.5", "tenants.a.max_in_flight: must be a whole number of 0 or more"),
        ("[tenants.a]\nmodels = 'x'", "tenants.a.models: must be a list of models' names"),
        ("[tenants.a]\nisolate = 1", "tenants.a.isolate: must be true or false"),
        ("[tenants.a]\nweights = 'ttft=0,tpot=0'", "tenants.a.weights: the weights must not both be 0"),
        ("[tenants.a]\nquota = 1", "tenants.a.quota: unknown; there are class, share,"),
        ("[tenants.'a b']", "tenants: a name has letters, digits and _.@-, up to 64"),
        ("[default]\nshare = inf", "default.share: must be a number of 0 or more"),
        ("tenants = 3", "tenants: must be tables"),
        ("[tenants]\na = 3", "tenants.a: must be a table"),
        ("[people.a]", "people: unknown; there are [default] and [tenants.NAME]"),
        ("[tenants.a", "not valid TOML: "),
    ],
)
def test_what_is_wrong_is_one_line_that_names_the_key(text: str, complaint: str) -> None:
    with pytest.raises(TenantFileError) as error:
        read_tenants(text)
    assert str(error.value).startswith(complaint)
    assert "\n" not in str(error.value)
