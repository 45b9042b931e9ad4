"""The data contract: no feature is left out of both matrices."""

from types import SimpleNamespace
from typing import get_args

from foundation.data.schema import Feature, IdFeature, ids_of, numbers_of


def test_every_kind_of_feature_is_a_column_of_one_matrix():
    union, _ = get_args(Feature)
    features = (*(kind.model_construct(name="known") for kind in get_args(union)), SimpleNamespace(name="of later"))
    assert sorted([*ids_of(features), *numbers_of(features)], key=features.index) == list(features)
    assert all(isinstance(feature, IdFeature) for feature in ids_of(features))
