"""What the drivers tell of clocks, power, temperature and throttling, before and after something is timed.

A figure of a device that was throttled is no figure of the kernel. No driver tells everything, and a container often
sees none of it, so each record names its source and what it could not tell.

Where the fields come from: Linux kernel documentation, "GPU Power/Thermal Controls and Monitoring" of amdgpu
(``pp_dpm_sclk``, hwmon) and "General description of CPUFreq"; AMD SMI documentation, "GPU violations"; NVIDIA's NVML
API reference, "Clocks Event Reasons", and ``nvidia-smi --help-query-gpu``. The GPU readers have read texts and objects
of these forms, not yet a driver.
"""

from __future__ import annotations

import csv
import importlib
import io
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

FELL = 0.95
"""A clock below this share of what it was before is said to have fallen."""

QUERY = ("clocks.sm", "clocks.max.sm", "power.draw", "power.limit", "temperature.gpu")
"""What ``nvidia-smi`` is asked for, before the bits of the reasons."""

REASON_QUERIES = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""Names of the bits: since driver 535, and before."""

REASONS = {
    0x4: "power cap (software)",
    0x8: "hardware slowdown",
    0x20: "thermal slowdown (software)",
    0x40: "thermal slowdown (hardware)",
    0x80: "power brake (hardware)",
}
"""Bits of NVML's clocks event reasons that are throttling. Idle, fixed application clocks and display are none."""


class UnreadableClocks(ValueError):
    """A driver's text is not of the form that it is known for; the message holds the text."""


@dataclass(frozen=True)
class ClockRecord:
    """One reading. What is None stands among ``unknown``."""

    source: str
    """``amdgpu sysfs``, ``amdsmi``, ``NVML``, ``nvidia-smi``, ``Linux cpufreq``; empty if nothing could be read."""
    hertz: float | None = None
    """Of the compute units or cores now."""
    most_hertz: float | None = None
    watts: float | None = None
    most_watts: float | None = None
    """The power cap that is set."""
    celsius: float | None = None
    """Of the hottest sensor."""
    throttling: tuple[str, ...] | None = None
    """Why the clock is held down at this moment; empty if it is not."""
    throttled: Mapping[str, int] | None = None
    """Counters by reason that only grow while throttled; their units are the driver's."""
    load: float | None = None
    """Of a host: runnable processes over the last minute, and the CPUs that this process may use."""
    cpus: int = 0
    failures: tuple[str, ...] = ()
    """Why a source could not be read."""

    @property
    def unknown(self) -> tuple[str, ...]:
        """What the source does not tell."""
        told = {
            "clock": self.hertz,
            "highest clock": self.most_hertz,
            "power": self.watts,
            "temperature": self.celsius,
            "throttling": self.throttling if self.throttling is not None else self.throttled,
        }
        return tuple(name for name, value in told.items() if value is None)

    def describe(self) -> str:
        """One line: what is known, where it is from, what is not."""
        parts = []
        if self.hertz is not None:
            most = f" of {self.most_hertz / 1e6:.0f}" if self.most_hertz else ""
            parts.append(f"{self.hertz / 1e6:.0f}{most} MHz")
        if self.watts is not None:
            parts.append(f"{self.watts:.0f}{f' of {self.most_watts:.0f}' if self.most_watts else ''} W")
        if self.celsius is not None:
            parts.append(f"{self.celsius:.0f} C")
        if self.load is not None:
            parts.append(f"load {self.load:.1f} on {self.cpus} CPUs")
        known = ", ".join(parts) or "nothing"
        unknown = f"; unknown: {', '.join(self.unknown)}" if self.unknown else ""
        failures = f" ({'; '.join(self.failures)})" if self.failures else ""
        return f"{known} from {self.source or 'no driver'}{unknown}{failures}"


Reader = Callable[[], ClockRecord]


def throttled(before: ClockRecord, after: ClockRecord) -> tuple[str, ...]:
    """What happened between two readings that a reader of the samples must know; empty if nothing, and all is known.

    A clock that is lower afterwards is no proof of throttling, but the second half was not measured at the first's.
    """
    notes = []
    active = dict.fromkeys((*(before.throttling or ()), *(after.throttling or ())))
    if active:
        notes.append(f"throttled: {', '.join(active)} ({after.source})")
    grown = [
        f"{reason} +{count - before.throttled[reason]}"
        for reason, count in (after.throttled or {}).items()
        if before.throttled and count > before.throttled.get(reason, count)
    ]
    if grown:
        notes.append(f"throttled while timed: {', '.join(grown)} ({after.source})")
    if before.hertz and after.hertz and after.hertz < FELL * before.hertz:
        notes.append(f"the clock fell from {before.hertz / 1e6:.0f} to {after.hertz / 1e6:.0f} MHz ({after.source})")
    if after.load is not None and after.cpus and after.load > after.cpus:
        notes.append(f"load {after.load:.1f} on {after.cpus} CPUs: others were running")
    # What one reading lacks cannot be compared: a counter seen only afterwards may have grown.
    if unknown := dict.fromkeys((*before.unknown, *after.unknown)):
        notes.append(f"unknown of the clocks: {', '.join(unknown)} ({after.source or 'no driver was readable'})")
    return tuple(notes)


def read_host(root: Path = Path("/sys/devices/system/cpu")) -> ClockRecord:
    """The CPUs: psutil's frequency and temperatures, the kernel's throttle counters, the load average.

    Virtual machines mostly give the nominal frequency and no counters.
    """
    import psutil

    frequency = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
    sensors = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
    hottest = max((one.current for chip in sensors.values() for one in chip), default=None)
    counters: dict[str, int] = {}
    for path in sorted(root.glob("cpu[0-9]*/thermal_throttle/*_throttle_count")):
        # A package's counter stands with each of its CPUs: the highest, not the sum.
        kind = path.name.removesuffix("_throttle_count")
        counters[kind] = max(counters.get(kind, 0), int(_text(path) or 0))
    governed = _text(root / "cpu0" / "cpufreq" / "scaling_cur_freq")
    return ClockRecord(
        "Linux cpufreq" if governed else "psutil",
        hertz=float(governed) * 1e3 if governed else (frequency.current * 1e6 if frequency else None),
        most_hertz=(frequency.max * 1e6 or None) if frequency else None,
        celsius=hottest,
        throttled=counters or None,
        load=psutil.getloadavg()[0],
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count() or 0,
    )


def read_amd_sysfs(card: Path) -> ClockRecord:
    """An AMD GPU by its driver's files.

    ``card``: the device's folder, ``/sys/class/drm/card1/device``. Throttling stands in ``gpu_metrics`` alone, a binary
    table whose layout depends on its version: :func:`read_amdsmi` tells it.

    Raises:
        UnreadableClocks: ``pp_dpm_sclk`` has another form.
    """
    levels = _text(card / "pp_dpm_sclk")
    now, most = parse_dpm(levels) if levels else (None, None)
    sensors = next(iter(sorted(card.glob("hwmon/hwmon*"))), card)
    measured = _number(sensors / "freq1_input")
    power = _number(sensors / "power1_average") or _number(sensors / "power1_input")
    cap = _number(sensors / "power1_cap")
    heat = [value for path in sensors.glob("temp*_input") if (value := _number(path)) is not None]
    return ClockRecord(
        "amdgpu sysfs",
        hertz=measured if measured is not None else now,
        most_hertz=most,
        watts=None if power is None else power / 1e6,
        most_watts=None if cap is None else cap / 1e6,
        celsius=max(heat) / 1e3 if heat else None,
    )


def parse_dpm(text: str) -> tuple[float | None, float]:
    """The marked and the highest clock in hertz of ``pp_dpm_sclk``: lines such as ``1: 2100Mhz *``.

    Raises:
        UnreadableClocks: a line has another form.
    """
    clocks, now = [], None
    for line in text.splitlines():
        match = re.fullmatch(r"\s*(?:\d+|S):\s*(\d+(?:\.\d+)?)\s*[Mm][Hh]z\s*(\*?)\s*", line)
        if match is None:
            raise UnreadableClocks(f"pp_dpm_sclk: {line!r} is not '1: 2100Mhz *'")
        clocks.append(float(match[1]) * 1e6)
        if match[2]:
            now = clocks[-1]
    if not clocks:
        raise UnreadableClocks("pp_dpm_sclk: no clock")
    return now, max(clocks)


def read_amdsmi(amdsmi: ModuleType | Any, pci: str) -> ClockRecord:
    """An AMD GPU by AMD SMI's Python package: MI300 and newer count throttling by reason.

    ``pci``: ``0000:c1:00.0``. Fields that a device lacks are ``N/A`` there.
    """
    amdsmi.amdsmi_init()
    try:
        handle = amdsmi.amdsmi_get_processor_handle_from_bdf(pci)
        clock = amdsmi.amdsmi_get_clock_info(handle, amdsmi.AmdSmiClkType.GFX)
        power = amdsmi.amdsmi_get_power_info(handle)
        violations = amdsmi.amdsmi_get_violation_status(handle)
    finally:
        amdsmi.amdsmi_shut_down()
    named = {
        "acc_prochot_thrm": "processor hot",
        "acc_ppt_pwr": "package power",
        "acc_socket_thrm": "socket temperature",
        "acc_vr_thrm": "regulator temperature",
        "acc_hbm_thrm": "HBM temperature",
    }
    counters = {told: value for key, told in named.items() if isinstance(value := violations.get(key), int)}
    watts = [power.get(key) for key in ("current_socket_power", "average_socket_power")]
    now, most = (
        value * 1e6 if isinstance(value := clock.get(key), (int, float)) else None for key in ("clk", "max_clk")
    )
    return ClockRecord(
        "amdsmi",
        hertz=now,
        most_hertz=most,
        watts=next((float(one) for one in watts if isinstance(one, (int, float))), None),
        throttled=counters or None,
    )


def parse_nvidia_smi(text: str) -> ClockRecord:
    """One line of ``nvidia-smi --format=csv,noheader,nounits``: the fields of :data:`QUERY`, then the reasons.

    Raises:
        UnreadableClocks: it has another number of fields, or the reasons are no bits.
    """
    rows = [row for row in csv.reader(io.StringIO(text), skipinitialspace=True) if row]
    if len(rows) != 1 or len(rows[0]) != len(QUERY) + 1:
        raise UnreadableClocks(f"nvidia-smi: {text[:200]!r} is not one line of {len(QUERY) + 1} fields")

    def figure(field: str) -> float | None:
        try:
            return float(field)
        except ValueError:
            return None  # [N/A], [Not Supported], [Unknown Error]

    sm, most_sm, watts, cap, celsius = (figure(field) for field in rows[0][:5])
    try:
        reasons: tuple[str, ...] | None = nvidia_reasons(int(rows[0][5], 16))
    except ValueError:
        reasons = None
        if not rows[0][5].startswith("["):
            raise UnreadableClocks(f"nvidia-smi: {rows[0][5]!r} are no bits of reasons") from None
    return ClockRecord(
        "nvidia-smi",
        hertz=None if sm is None else sm * 1e6,
        most_hertz=None if most_sm is None else most_sm * 1e6,
        watts=watts,
        most_watts=cap,
        celsius=celsius,
        throttling=reasons,
    )


def nvidia_reasons(bits: int) -> tuple[str, ...]:
    """Names of NVML's clocks event reasons that are throttling."""
    return tuple(name for bit, name in REASONS.items() if bits & bit)


def read_nvidia_smi(pci: str) -> ClockRecord:
    """An NVIDIA GPU by ``nvidia-smi``; ``pci``: ``0000:c1:00.0``.

    Raises:
        OSError, subprocess.SubprocessError, UnreadableClocks: the program cannot be run, fails, or tells other things.
    """
    for reasons in REASON_QUERIES:
        asked = ",".join((*QUERY, reasons))
        command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader,nounits", "-i", pci]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20)
        if not answer.returncode:
            break
    answer.check_returncode()
    return parse_nvidia_smi(answer.stdout)


def read_nvml(pynvml: ModuleType | Any, pci: str) -> ClockRecord:
    """An NVIDIA GPU by ``nvidia-ml-py``."""
    pynvml.nvmlInit()
    reasons = getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    reasons = reasons or pynvml.nvmlDeviceGetCurrentClocksThrottleReasons  # as it was called before driver 535
    try:
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci.encode())
        return ClockRecord(
            "NVML",
            hertz=pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) * 1e6,
            most_hertz=pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM) * 1e6,
            watts=pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            most_watts=pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
            celsius=float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
            throttling=nvidia_reasons(reasons(handle)),
        )
    finally:
        pynvml.nvmlShutdown()


@dataclass(frozen=True)
class DeviceReader:
    """Reads one GPU by the first source that answers; a driver that does not answer never ends a measurement."""

    vendor: str
    """``amd`` or ``nvidia``."""
    pci: str
    drm: Path = field(default=Path("/sys/class/drm"))

    def __call__(self) -> ClockRecord:
        """The record of the first source; without any, one that says why each failed."""
        failures = []
        for name, source in self._sources():
            try:
                return source()
            except Exception as error:  # drivers' packages have errors of their own, and none may end a measurement
                failures.append(f"{name}: {type(error).__name__}")
        return ClockRecord("", failures=tuple(failures))

    def _sources(self) -> list[tuple[str, Reader]]:
        if self.vendor == "amd":
            return [("amdsmi", self._amdsmi), ("amdgpu sysfs", self._sysfs)]
        sources: list[tuple[str, Reader]] = [("NVML", self._nvml)]
        if shutil.which("nvidia-smi"):
            sources.append(("nvidia-smi", lambda: read_nvidia_smi(self.pci)))
        return sources

    def _amdsmi(self) -> ClockRecord:
        return read_amdsmi(importlib.import_module("amdsmi"), self.pci)

    def _sysfs(self) -> ClockRecord:
        for card in sorted(self.drm.glob("card*/device")):
            if card.resolve().name.lower() == self.pci.lower():
                return read_amd_sysfs(card)
        raise UnreadableClocks(f"no card below {self.drm} is {self.pci}")

    def _nvml(self) -> ClockRecord:
        return read_nvml(importlib.import_module("pynvml"), self.pci)


def reader_of(properties: Any, hip: bool) -> DeviceReader:
    """For torch's ``get_device_properties``, which tells the PCI address, so that hidden devices do not shift it."""
    numbers = [getattr(properties, name, 0) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")]
    return DeviceReader("amd" if hip else "nvidia", "{:04x}:{:02x}:{:02x}.0".format(*numbers))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> float | None:
    try:
        return float(_text(path))
    except ValueError:
        return None
