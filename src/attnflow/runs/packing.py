"""What an experiment gave, as the files of a run."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xarray as xr
from h5netcdf.core import CompatibilityError

from attnflow.runs.config import canonical
from attnflow.runs.environment import environment

CLOCKS = ("step", "time")
SMALL = 1 << 20  # bytes up to which netCDF 3 is written: twenty times faster than netCDF 4
FILES = ("config.json", "environment.json", "scalars.parquet", "arrays.nc", "log.txt")


def pack(
    config: Any, data: Any, experiment: str, log: str, seconds: float
) -> dict[str, bytes | memoryview]:
    """The content of FILES; without `arrays.nc` if that is for `write_arrays`, because it is large
    or beyond netCDF 3. Raises ValueError or TypeError for data that no run can hold."""
    data = storable(data)
    about = environment() | {"seconds": seconds, "seed": _seed(config)}
    table = pa.BufferOutputStream()
    pq.write_table(scalars_of(data), table)
    files: dict[str, bytes | memoryview] = {
        "config.json": f"{canonical(config, experiment)}\n".encode(),
        "environment.json": f"{json.dumps(about, indent=1)}\n".encode(),
        "scalars.parquet": memoryview(table.getvalue()),
        "log.txt": log.encode(errors="backslashreplace"),
    }
    arrays = _small_arrays(data)
    return files if arrays is None else files | {"arrays.nc": arrays}


def _seed(config: Any) -> int | None:
    seed = getattr(config, "seed", None)
    return int(seed) if isinstance(seed, int | np.integer) else None


def storable(data: Any) -> xr.Dataset:
    """The data, with words as text; an error that says what is wrong with them."""
    if data is None:
        raise ValueError("the experiment returned None: is its `return` missing?")
    if not isinstance(data, xr.Dataset):
        raise ValueError(
            f"the experiment returned a {type(data).__name__}: a run stores an xarray.Dataset"
        )
    for name, values in data.variables.items():
        if values.dtype.kind in "fiubU":
            continue
        if all(isinstance(x, str) for x in values.values.flat):  # words as objects
            data = data.assign({name: values.astype(str)})
        else:
            raise ValueError(f"{name} is {values.dtype}: a run stores numbers and words")
    return data


def scalars_of(data: xr.Dataset) -> pa.Table:
    """What is one number, or one number a step (or time): a column each."""
    clock = next((name for name in CLOCKS if name in data.dims), None)
    length = data.sizes[clock] if clock else 1
    columns: dict[str, Any] = {clock: data[clock].values} if clock else {}
    for name in data.data_vars:
        values = data.variables[name]
        if values.dtype.kind not in "fiub":
            continue
        if values.dims == ((clock,) if clock else ()):
            columns[str(name)] = np.atleast_1d(values.values)
        elif clock and values.dims == ():
            columns[str(name)] = np.broadcast_to(values.values, length)
    return pa.table({name: np.ascontiguousarray(_common(x)) for name, x in columns.items()})


def _common(values: np.ndarray) -> np.ndarray:
    """Of floats those that every reader of Parquet knows: half and extended precision are not."""
    usual = values.dtype.kind != "f" or values.dtype.itemsize in (4, 8)
    return values if usual else values.astype(np.float64)


def _small_arrays(data: xr.Dataset) -> bytes | memoryview | None:
    plain = all(_fits_netcdf_3(values) for values in data.variables.values())
    if not plain or data.nbytes > SMALL:
        return None
    try:
        return data.to_netcdf(engine="scipy", format="NETCDF3_64BIT")
    except (ValueError, TypeError):  # a name such as κ, a wide number in an attribute, …
        return None


def write_arrays(data: Any, path: Path) -> None:
    """As netCDF 4."""
    data = storable(data)
    try:
        data.to_netcdf(path, engine="h5netcdf")
    except CompatibilityError:  # such as True in an attribute: HDF5 can, other readers may not
        path.unlink(missing_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            data.to_netcdf(path, engine="h5netcdf", invalid_netcdf=True)


def _fits_netcdf_3(values: xr.Variable) -> bool:
    """It comes back as it was; netCDF 3 has no int64, so `read_arrays` widens what it finds."""
    if values.dtype == np.int64:
        small = values.size == 0 or -(2**31) < values.values.min() <= values.values.max() < 2**31
        return bool(small)
    return values.dtype.kind == "U" or values.dtype in (np.float32, np.float64)


def read_arrays(path: Path) -> xr.Dataset:
    found = xr.load_dataset(path)
    with path.open("rb") as file:
        classic = file.read(3) == b"CDF"
    narrow = [x for x in found.variables if classic and found[x].dtype == np.int32]
    return found.assign({x: found[x].astype(np.int64) for x in narrow})
