"""TSO arithmetic and what an error carries."""

import pickle

import schemas.errors
from schemas.errors import Action, BusError, CorruptDataError
from schemas.ids import Ts, compose_ts, physical_ms


def test_tso_of_the_pd_reference_splits_and_composes() -> None:
    assert physical_ms(Ts(415508878783938562)) == 1585040583740
    assert compose_ts(1585040583740, 2) == 0x5C42F1FB0F00002


def test_error_when_pickled_keeps_its_class_fields_and_text() -> None:
    error = CorruptDataError("row does not decode", table="d1.t", key="7480", commit_ts=7)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is CorruptDataError
    assert (again.fields, str(again)) == (error.fields, str(error))
    assert str(error) == "[bus.corrupt_data] row does not decode (table=d1.t, key=7480, commit_ts=7)"


def test_error_codes_are_distinct_and_actions_set() -> None:
    kinds = [kind for kind in vars(schemas.errors).values() if isinstance(kind, type) and issubclass(kind, BusError)]
    assert len({kind.code for kind in kinds}) == len(kinds)
    assert all(isinstance(kind.action, Action) for kind in kinds)
