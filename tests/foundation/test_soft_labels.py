import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest

from foundation.soft_labels import NOTHING_LEARNED, SoftLabelWriter, Teacher, part_name, read_soft_labels
from serving.errors import MismatchError

OBJECTIVES = ("click", "buy")
RUN = "t" * 64
STAMP = {"data_fingerprint": "d" * 64, "schema_digest": "s" * 64}
ASKED = STAMP | {"run": RUN}


def rows_of(ids):
    """Row ids, cutoffs and logits of some rows, a pure function of the id; the buy logit of even ids is unknown."""
    ids = np.array(ids, dtype=np.int64)
    buy = np.where(ids % 2 == 0, np.nan, -ids / 4)
    return ids, ids * 10, np.stack([ids / 8, buy], axis=1).astype(np.float32)


def written(folder, *parts, rank=0):
    writer = SoftLabelWriter(folder, OBJECTIVES, rank=rank)
    for ids in parts:
        writer.add(*rows_of(ids))
        writer.flush()
    return writer


def stored(folder, *parts):
    written(folder, *parts).publish(teacher=Teacher(run=RUN), **STAMP)
    return folder


def read(folder, **changed):
    return read_soft_labels(folder, **(ASKED | changed))


def test_rows_come_back_whatever_their_order(tmp_path):
    labels = read(stored(tmp_path, [7, -3], [5, 2**62, 4]))
    asked = np.array([4, 2**62, -3, 5, 4])
    np.testing.assert_array_equal(labels.of_rows(asked, np.full(5, 2**62)), rows_of([4, 2**62, -3, 5, 4])[2])
    assert labels.row_ids.tolist() == [-3, 4, 5, 7, 2**62]
    assert labels.manifest.num_rows == 5


def test_a_row_nobody_scored_is_nan(tmp_path):
    labels = read(stored(tmp_path, [3, 5]))
    logits = labels.of_rows(np.array([2, 3, 4, 6]), np.full(4, 1000))
    np.testing.assert_array_equal(np.isnan(logits).all(axis=1), [True, False, True, True])


def test_an_empty_store_knows_no_row(tmp_path):
    labels = read(stored(tmp_path, []))
    assert np.isnan(labels.of_rows(np.array([1]), np.array([1]))).all()
    assert labels.of_rows(np.array([], dtype=np.int64), np.array([], dtype=np.int64)).shape == (0, 2)


def test_a_store_of_no_part_knows_no_row(tmp_path):
    labels = read(stored(tmp_path))
    assert np.isnan(labels.of_rows(np.array([1]), np.array([1]))).all()


def test_a_pair_without_a_head_is_null_in_the_file(tmp_path):
    stored(tmp_path, [2, 3])
    column = pq.read_table(tmp_path / part_name(0, 0))["logit.buy"]
    assert column.to_pylist() == [None, -0.75]


@pytest.mark.parametrize("name", ASKED)
def test_labels_of_another_teacher_data_or_schema_are_refused(tmp_path, name):
    stored(tmp_path, [1])
    with pytest.raises(MismatchError, match=f"{name}: expected xxxx"):
        read(tmp_path, **{name: "x" * 64})


def test_every_difference_is_named_at_once(tmp_path):
    stored(tmp_path, [1])
    with pytest.raises(MismatchError) as caught:
        read(tmp_path, **dict.fromkeys(ASKED, "x" * 64))
    assert len(caught.value.problems) == 3


def test_without_a_teacher_asked_for_any_will_do(tmp_path):
    stored(tmp_path, [1])
    assert len(read(tmp_path, run=None).row_ids) == 1


def test_a_truncated_part_is_refused(tmp_path):
    stored(tmp_path, range(100))
    part = tmp_path / part_name(0, 0)
    part.write_bytes(part.read_bytes()[:-10])
    with pytest.raises(MismatchError, match=r"part-0000-00000\.parquet"):
        read(tmp_path)


def test_an_edited_part_is_refused(tmp_path):
    stored(tmp_path, range(100))
    part = tmp_path / part_name(0, 0)
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    with pytest.raises(MismatchError, match="sha256"):
        read(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"teacher": 1}'])
def test_a_malformed_manifest_is_refused(tmp_path, content):
    stored(tmp_path, [1])
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(MismatchError, match="a soft-label manifest"):
        read(tmp_path)


def test_parts_without_a_manifest_are_no_store(tmp_path):
    written(tmp_path, [1])
    with pytest.raises(MismatchError, match="a soft-label store"):
        read(tmp_path)


def test_a_row_scored_by_a_teacher_of_its_future_is_refused(tmp_path):
    labels = read(stored(tmp_path, [1, 2, 3]))  # row 3 was scored when requests up to 30 had been learned from
    assert np.isfinite(labels.of_rows(np.array([3]), np.array([30]))[0, 0])
    with pytest.raises(MismatchError, match=r"row 3.*29 us.*30 us \(1 rows"):
        labels.of_rows(np.array([1, 3]), np.array([30, 29]))


def test_a_teacher_that_had_learned_nothing_leaks_nothing(tmp_path):
    writer = SoftLabelWriter(tmp_path, OBJECTIVES)
    ids, _, logits = rows_of([1])
    writer.add(ids, np.array([NOTHING_LEARNED]), logits)
    writer.publish(teacher=Teacher(run=RUN), **STAMP)
    assert np.isfinite(read(tmp_path).of_rows(ids, np.array([-(2**60)]))[0, 0])


def test_a_rewound_store_is_as_if_the_later_parts_had_never_been(tmp_path):
    stored(tmp_path / "never", [1, 2], [3])
    stored(tmp_path / "again", [1, 2], [30], [40, 50])
    writer = SoftLabelWriter(tmp_path / "again", OBJECTIVES)
    writer.add(*rows_of([99]))
    writer.rewind(1)
    with pytest.raises(MismatchError):
        read(tmp_path / "again")
    writer.add(*rows_of([3]))
    writer.publish(teacher=Teacher(run=RUN), **STAMP)
    never, again = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("never", "again"))
    assert never == again


def test_a_rewind_of_fewer_ranks_drops_the_later_parts_of_all_that_were(tmp_path):
    for rank in (0, 1):
        written(tmp_path, [rank], [10 + rank], rank=rank)
    writer = SoftLabelWriter(tmp_path, OBJECTIVES, rank=0)
    writer.rewind(1)
    writer.publish(teacher=Teacher(run=RUN), **STAMP)
    assert read(tmp_path).row_ids.tolist() == [0, 1]


def test_what_a_killed_writer_left_is_not_part_of_the_store(tmp_path):
    written(tmp_path, [1])
    for name in (".part-0000-00001.parquet.host-1-ab.partial", "part-0000-00001.partial"):
        (tmp_path / name).write_bytes(b"half")
    writer = SoftLabelWriter(tmp_path, OBJECTIVES)
    writer.rewind(1)
    writer.publish(teacher=Teacher(run=RUN), **STAMP)
    assert set(orjson.loads((tmp_path / "manifest.json").read_bytes())["files"]) == {part_name(0, 0)}
    assert read(tmp_path).row_ids.tolist() == [1]


def test_a_part_that_a_resumed_run_counts_on_and_is_gone_is_an_error(tmp_path):
    written(tmp_path, [1], [2], [3])
    (tmp_path / part_name(0, 1)).unlink()
    with pytest.raises(MismatchError, match=r"part-0000-00001\.parquet"):
        SoftLabelWriter(tmp_path, OBJECTIVES).rewind(3)


def test_a_row_scored_twice_is_refused(tmp_path):
    stored(tmp_path, [1, 2], [2, 3])
    with pytest.raises(MismatchError, match="row 2"):
        read(tmp_path)
