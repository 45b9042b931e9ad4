"""Counters of joules: of machines made of files, that come back to 0; and none where nothing tells."""

import sys
from types import SimpleNamespace

import pytest
import torch

from foundation.goodput.energy import EnergyMeter, GpuEnergy, PackageEnergy

CPU = torch.device("cpu")
RANGE = 1_000_000_000


class Machine:
    """A power capping folder as Linux has it: packages, and what is counted within them or beside them once more."""

    def __init__(self, root, packages=2):
        self.root = root
        for place in range(packages):
            self.add(f"intel-rapl:{place}", f"package-{place}")
            self.add(f"intel-rapl:{place}:0", "core")
        self.add("intel-rapl:9", "psys")
        (root / "intel-rapl").mkdir()

    def add(self, folder, name):
        (self.root / folder).mkdir()
        (self.root / folder / "name").write_text(f"{name}\n")
        (self.root / folder / "max_energy_range_uj").write_text(f"{RANGE}\n")
        self.count(folder, 0)

    def count(self, folder, microjoules):
        (self.root / folder / "energy_uj").write_text(f"{microjoules}\n")


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_packages_are_added_and_nothing_is_counted_twice(machine):
    machine.count("intel-rapl:0", 100_000_000)
    energy = PackageEnergy(machine.root)
    for folder in ("intel-rapl:0", "intel-rapl:0:0", "intel-rapl:9"):
        machine.count(folder, 107_000_000)
    machine.count("intel-rapl:1", 3_000_000)
    assert energy.joules() == pytest.approx(7 + 3)
    assert energy.joules() == pytest.approx(7 + 3)


def test_a_counter_that_came_back_to_0_has_gone_on(machine):
    machine.count("intel-rapl:0", RANGE - 2_000_000)
    energy = PackageEnergy(machine.root)
    machine.count("intel-rapl:0", 3_000_000)
    assert energy.joules() == pytest.approx(5)
    machine.count("intel-rapl:0", 4_000_000)
    assert energy.joules() == pytest.approx(6)


def test_one_package_that_does_not_tell_makes_the_sum_unknown(machine):
    energy = PackageEnergy(machine.root)
    (machine.root / "intel-rapl:1" / "energy_uj").unlink()
    assert energy.joules() is None


def test_a_machine_without_counters_is_not_measured(tmp_path):
    assert PackageEnergy(tmp_path / "none").joules() is None
    with EnergyMeter(CPU, is_first_of_machine=True, root=tmp_path) as meter:
        assert meter.cpu_joules() is None
        assert meter.gpu_joules() is None


def test_only_the_first_rank_of_a_machine_answers_for_its_processors(machine):
    with (
        EnergyMeter(CPU, is_first_of_machine=True, root=machine.root) as first,
        EnergyMeter(CPU, is_first_of_machine=False, root=machine.root) as second,
    ):
        machine.count("intel-rapl:0", 9_000_000)
        assert first.cpu_joules() == pytest.approx(9)
        assert second.cpu_joules() is None


@pytest.fixture
def nvml(monkeypatch):
    """Stands in for NVML, which there is only where a GPU is: counts in millijoules, by the GPU's UUID."""

    class NVMLError(Exception):
        pass

    counters = {"GPU-one": 5_000}

    def used(handle):
        if handle not in counters:
            raise NVMLError
        return counters[handle]

    def by_uuid(name):
        return name

    names = {"nvmlDeviceGetHandleByUUID": by_uuid, "nvmlDeviceGetTotalEnergyConsumption": used}
    module = SimpleNamespace(NVMLError=NVMLError, nvmlInit=lambda: None, **names)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="one"))
    return counters


def test_a_gpu_s_millijoules_are_those_since_the_beginning(nvml):
    energy = GpuEnergy(torch.device("cuda", 0))
    nvml["GPU-one"] = 7_500
    assert energy.joules() == pytest.approx(2.5)


def test_a_gpu_that_does_not_count_is_not_measured(nvml):
    nvml.clear()
    assert GpuEnergy(torch.device("cuda", 0)).joules() is None


def test_without_nvml_a_gpu_is_not_measured(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert GpuEnergy(torch.device("cuda", 0)).joules() is None
