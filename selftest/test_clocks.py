"""What drivers tell of clocks, in texts and objects of their forms: none of these was recorded on a GPU."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from waveproof.perf import clocks
from waveproof.perf.clocks import ClockRecord, DeviceReader, UnreadableClocks, parse_dpm, parse_nvidia_smi, throttled
from waveproof.perf.measure import PairPlan, measure_pair
from waveproof.selftest.pretended_events import PretendedGPU, instruments, quiet

PCI = "0000:c1:00.0"


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{text}\n")
    return folder


class TestAmd:
    def test_levels(self) -> None:
        assert parse_dpm("0: 132Mhz *\n1: 2100Mhz\n") == (132e6, 2100e6)
        assert parse_dpm("S: 19Mhz *\n0: 500Mhz\n1: 2400Mhz") == (19e6, 2400e6)
        assert parse_dpm("0: 500Mhz\n1: 2400Mhz") == (None, 2400e6)
        for wrong in ("", "2100", "1: 2100 *"):
            with pytest.raises(UnreadableClocks, match="pp_dpm_sclk"):
                parse_dpm(wrong)

    def test_sysfs(self, tmp_path: Path) -> None:
        """The card is found by its address, power is in microwatts, heat in thousandths, the hottest sensor counts."""
        files = {
            "pp_dpm_sclk": "0: 132Mhz\n1: 2100Mhz *", "hwmon/hwmon3/freq1_input": "1987000000",
            "hwmon/hwmon3/power1_average": "612000000", "hwmon/hwmon3/power1_cap": "750000000",
            "hwmon/hwmon3/temp1_input": "61000", "hwmon/hwmon3/temp2_input": "74000",
        }  # fmt: skip
        device = write(tmp_path / "devices" / PCI, files)
        for number, target in enumerate((tmp_path, device)):
            (tmp_path / "drm" / f"card{number}").mkdir(parents=True)
            (tmp_path / "drm" / f"card{number}" / "device").symlink_to(target)
        record = DeviceReader("amd", PCI, tmp_path / "drm")()
        assert record == replace(
            ClockRecord("amdgpu sysfs", 1987e6, 2100e6, 612.0, 750.0, 74.0), failures=record.failures
        )
        assert record.unknown == ("throttling",)
        assert clocks.read_amd_sysfs(device).describe() == (
            "1987 of 2100 MHz, 612 of 750 W, 74 C from amdgpu sysfs; unknown: throttling"
        )
        nowhere = DeviceReader("amd", "0000:00:00.0", tmp_path / "drm")()
        assert nowhere.source == ""
        assert nowhere.unknown
        assert "amdgpu sysfs: UnreadableClocks" in nowhere.describe()

    def test_amdsmi(self) -> None:
        """Counters by reason; fields that a device lacks are N/A."""
        shut: list[int] = []
        smi = SimpleNamespace(
            amdsmi_init=lambda: None,
            amdsmi_shut_down=lambda: shut.append(1),
            AmdSmiClkType=SimpleNamespace(GFX=0),
            amdsmi_get_processor_handle_from_bdf=lambda bdf: {PCI: "handle"}[bdf],
            amdsmi_get_clock_info=lambda handle, kind: {"clk": 2074, "max_clk": 2100},
            amdsmi_get_power_info=lambda handle: {"current_socket_power": "N/A", "average_socket_power": 433},
            amdsmi_get_violation_status=lambda handle: {"acc_ppt_pwr": 12, "acc_hbm_thrm": "N/A", "acc_counter": 9},
        )
        record = clocks.read_amdsmi(smi, PCI)
        assert (record.hertz, record.watts, record.throttled) == (2074e6, 433.0, {"package power": 12})
        assert shut == [1]


class TestNvidia:
    def test_line(self) -> None:
        record = parse_nvidia_smi("1755, 1980, 698.12, 700.00, 63, 0x0000000000000004\n")
        assert record == ClockRecord("nvidia-smi", 1755e6, 1980e6, 698.12, 700.0, 63.0, ("power cap (software)",))
        assert not record.unknown

    def test_what_is_not_available(self) -> None:
        record = parse_nvidia_smi("345, 1980, [N/A], [Not Supported], 31, [N/A]")
        assert record.unknown == ("power", "throttling")

    @pytest.mark.parametrize("wrong", ["", "1, 2, 3", "1, 2, 3, 4, 5, Active", "1,2,3,4,5,0x0\n1,2,3,4,5,0x0"])
    def test_other_texts(self, wrong: str) -> None:
        with pytest.raises(UnreadableClocks, match="nvidia-smi"):
            parse_nvidia_smi(wrong)

    def test_reasons(self) -> None:
        """Idle, fixed application clocks, sync boost and display slow nothing down that was to run."""
        assert clocks.nvidia_reasons(0x1 | 0x2 | 0x10 | 0x100) == ()
        assert clocks.nvidia_reasons(0x8 | 0x40) == ("hardware slowdown", "thermal slowdown (hardware)")

    def test_old_drivers_know_another_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[list[str]] = []

        def run(command: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
            asked.append(command)
            old = "throttle" in command[1]
            return subprocess.CompletedProcess(command, 0 if old else 2, "1, 2, 3, 4, 5, 0x20" if old else "no field")

        monkeypatch.setattr(subprocess, "run", run)
        assert clocks.read_nvidia_smi(PCI).throttling == ("thermal slowdown (software)",)
        assert [command[-1] for command in asked] == [PCI, PCI]
        monkeypatch.setattr(subprocess, "run", lambda command, **how: subprocess.CompletedProcess(command, 9))
        with pytest.raises(subprocess.CalledProcessError):
            clocks.read_nvidia_smi(PCI)

    def test_nvml(self) -> None:
        nvml = SimpleNamespace(
            nvmlInit=lambda: None, nvmlShutdown=lambda: None, NVML_CLOCK_SM=1, NVML_TEMPERATURE_GPU=0,
            nvmlDeviceGetHandleByPciBusId=lambda pci: {PCI.encode(): 1}[pci],
            nvmlDeviceGetClockInfo=lambda handle, kind: 1740, nvmlDeviceGetMaxClockInfo=lambda handle, kind: 1980,
            nvmlDeviceGetPowerUsage=lambda handle: 512_300, nvmlDeviceGetEnforcedPowerLimit=lambda handle: 700_000,
            nvmlDeviceGetTemperature=lambda handle, sensor: 55,
            nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x40,
        )  # fmt: skip
        record = clocks.read_nvml(nvml, PCI)
        assert record == ClockRecord("NVML", 1740e6, 1980e6, 512.3, 700.0, 55.0, ("thermal slowdown (hardware)",))
        nvml.nvmlDeviceGetCurrentClocksEventReasons = lambda handle: 0x4
        assert clocks.read_nvml(nvml, PCI).throttling == ("power cap (software)",)


class TestHost:
    def test_counters_of_a_package_stand_with_each_cpu(self, tmp_path: Path) -> None:
        write(tmp_path, {
            "cpu0/cpufreq/scaling_cur_freq": "3100000",
            "cpu0/thermal_throttle/package_throttle_count": "5", "cpu1/thermal_throttle/package_throttle_count": "5",
            "cpu0/thermal_throttle/core_throttle_count": "0", "cpu1/thermal_throttle/core_throttle_count": "2",
        })  # fmt: skip
        record = clocks.read_host(tmp_path)
        assert record.throttled == {"package": 5, "core": 2}
        assert (record.source, record.hertz) == ("Linux cpufreq", 3.1e9)

    def test_a_virtual_machine_does_not_tell(self, tmp_path: Path) -> None:
        record = clocks.read_host(tmp_path)
        assert (record.source, record.throttled) == ("psutil", None)
        assert "throttling" in record.unknown


class TestThrottled:
    def test_nothing_to_tell(self) -> None:
        assert throttled(quiet(), quiet()) == ()

    @pytest.mark.parametrize(
        ("change", "note"),
        [
            ({"throttling": ("power cap",)}, "throttled: power cap (pretended)"),
            ({"throttled": {"package": 9}}, "throttled while timed: package +4 (pretended)"),
            ({"hertz": 1.4e9}, "the clock fell from 2100 to 1400 MHz (pretended)"),
            ({"load": 3.0, "cpus": 2}, "load 3.0 on 2 CPUs: others were running"),
            ({"watts": None}, "unknown of the clocks: power (pretended)"),
        ],
    )
    def test_what_a_reader_must_know(self, change: dict[str, Any], note: str) -> None:
        before = replace(quiet(), throttled={"package": 5})
        assert throttled(before, replace(before, **change)) == (note,)

    def test_what_was_unknown_before_cannot_be_compared(self) -> None:
        """Counters that were read afterwards alone may have grown."""
        counted = replace(quiet(), throttling=None, throttled={"heat": 7})
        (note,) = throttled(replace(counted, throttled=None), counted)
        assert note == "unknown of the clocks: throttling (pretended)"

    def test_a_throttled_first_half_is_told_too(self) -> None:
        assert throttled(replace(quiet(), throttling=("heat",)), quiet()) == ("throttled: heat (pretended)",)

    def test_the_samples_carry_the_note(self) -> None:
        """The driver is asked before the first and after the last sample."""
        gpu = PretendedGPU()
        answers = iter((quiet(), replace(quiet(), hertz=1e9)))
        asked: list[int] = []

        def driver() -> ClockRecord:
            asked.append(len(gpu.log))
            return next(answers)

        plan = PairPlan(pairs=5, clock="device")
        tools = instruments(gpu, driver=driver)
        samples = measure_pair(gpu.kernel("a", 1e-3), gpu.kernel("b", 1e-3), plan, instruments=tools)
        assert any("fell from 2100 to 1000" in note for note in samples.notes)
        assert asked[1] - asked[0] == 10


def test_the_address_is_torchs() -> None:
    properties = SimpleNamespace(pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=0)
    assert clocks.reader_of(properties, hip=True) == DeviceReader("amd", PCI)
    assert clocks.reader_of(properties, hip=False).vendor == "nvidia"
