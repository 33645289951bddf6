"""Questions about memory that only a driver answers: attributes, NUMA nodes, handles, granules,
host memory at device addresses, how wide the answers about pointers are."""

import ctypes
import pathlib
import re

from cu import (DEVICE, FABRIC, GRANULE, HOST_NUMA, NONE, POSIX_FD, SUCCESS, NotHere, access,
                properties)

# What Firn stands on, by the names of cuda.h.
NAMED = {18: "INTEGRATED", 40: "ASYNC_ENGINE_COUNT", 41: "UNIFIED_ADDRESSING", 75: "MAJOR",
         76: "MINOR", 88: "PAGEABLE_MEMORY_ACCESS", 91: "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM",
         102: "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
         103: "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
         110: "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED", 115: "MEMORY_POOLS_SUPPORTED",
         116: "GPU_DIRECT_RDMA_SUPPORTED", 128: "HANDLE_TYPE_FABRIC_SUPPORTED",
         130: "NUMA_CONFIG", 131: "NUMA_ID", 134: "HOST_NUMA_ID",
         141: "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"}
POINTER = ("", "CONTEXT", "MEMORY_TYPE", "DEVICE_POINTER", "HOST_POINTER", "P2P_TOKENS",
           "SYNC_MEMOPS", "BUFFER_ID", "IS_MANAGED", "DEVICE_ORDINAL",
           "IS_LEGACY_CUDA_IPC_CAPABLE", "RANGE_START_ADDR", "RANGE_SIZE", "MAPPED",
           "ALLOWED_HANDLE_TYPES", "IS_GPU_DIRECT_RDMA_CAPABLE", "ACCESS_FLAGS", "MEMPOOL_HANDLE",
           "MAPPING_SIZE", "MAPPING_BASE_ADDR", "MEMORY_BLOCK_ID", "IS_HW_DECOMPRESS_CAPABLE")
BUFFER_ID = POINTER.index("BUFFER_ID")


def attributes(gpu):
    """All of them, by number; those that Firn stands on by name too."""
    found = {which: gpu.attribute(which) for which in range(1, 160)}
    version = ctypes.c_int()
    gpu.need("cuDriverGetVersion", ctypes.byref(version))
    gpu.answers.note("driver", version.value)
    gpu.answers.note("named", {f"{which} {name}": found[which] for which, name in NAMED.items()})
    gpu.answers.note("all", {which: value for which, value in found.items() if value is not None})


def nodes_of_the_machine():
    """{node: {"cpus", "total_kb", "free_kb"}} as the kernel tells."""
    found = {}
    for folder in sorted(pathlib.Path("/sys/devices/system/node").glob("node[0-9]*")):
        told = {name: int(value) for name, value in re.findall(
            r"(MemTotal|MemFree):\s+(\d+)", (folder / "meminfo").read_text())}
        found[int(folder.name[4:])] = {"cpus": (folder / "cpulist").read_text().strip(),
                                       "total_kb": told.get("MemTotal"),
                                       "free_kb": told.get("MemFree")}
    return found


def nodes(gpu):
    """NUMA nodes, those that this process may use, the GPU's."""
    gpu.answers.note("nodes", nodes_of_the_machine())
    for name in ("online", "possible", "has_memory", "has_cpu"):
        path = pathlib.Path("/sys/devices/system/node") / name
        gpu.answers.note(name, path.read_text().strip() if path.exists() else None)
    allowed = re.search(r"^Mems_allowed_list:\s*(\S+)", pathlib.Path("/proc/self/status")
                        .read_text(), re.M)
    gpu.answers.note("allowed", allowed[1] if allowed else None)
    text = ctypes.create_string_buffer(32)
    gpu.need("cuDeviceGetPCIBusId", text, 32, 0)
    path = pathlib.Path("/sys/bus/pci/devices") / text.value.decode().lower() / "numa_node"
    gpu.answers.note("pci", text.value.decode())
    gpu.answers.note("node_by_pci", path.read_text().strip() if path.exists() else None)
    gpu.answers.note("node_by_attribute_134", gpu.attribute(134))


def handle_types(gpu):
    """Which frames can be had; whether one can be given on, and what comes back."""
    for name, words in (("none", (NONE, False)), ("posix_fd", (POSIX_FD, False)),
                        ("fabric", (FABRIC, False)), ("posix_fd, rdma", (POSIX_FD, True))):
        gpu.answers.about(f"cuMemCreate {name}")
        result, handle = gpu.create(GRANULE, properties(DEVICE, 0, *words))
        gpu.answers.note(name, gpu.named(result))
        if result == SUCCESS and name == "posix_fd":
            number, back = ctypes.c_int(-1), ctypes.c_uint64()
            gpu.answers.note("export", gpu.ask("cuMemExportToShareableHandle",
                                               ctypes.byref(number), handle, POSIX_FD, 0))
            gpu.answers.note("import", gpu.ask(
                "cuMemImportFromShareableHandle", ctypes.byref(back),
                ctypes.c_void_p(number.value), POSIX_FD))
            gpu.answers.note("the same handle", back.value == handle)
            gpu.call("cuMemRelease", back.value)
        if result == SUCCESS:
            gpu.need("cuMemRelease", handle)


def granules(gpu):
    """Least and advised bytes, by memory and handle type."""
    node = max(gpu.attribute(134) or 0, 0)
    for where, kind, number in (("device", DEVICE, 0), ("host node", HOST_NUMA, node)):
        for name, handles in (("none", NONE), ("posix_fd", POSIX_FD)):
            for option, word in enumerate(("least", "advised")):
                size = ctypes.c_size_t()
                gpu.answers.about(f"cuMemGetAllocationGranularity {where}")
                result = gpu.call("cuMemGetAllocationGranularity", ctypes.byref(size),
                                  properties(kind, number, handles), option)
                gpu.answers.note(f"{where}, {name}, {word}",
                                 gpu.named(result) if result else size.value)


def host_node(gpu, node=None):
    """Host memory at a device address: made (which ends some drivers), copied, filled, read."""
    node = max(gpu.attribute(134) or 0, 0) if node is None else int(node)
    note, handle, size = gpu.answers.note, ctypes.c_uint64(), 2 * GRANULE
    note("node", node)
    made = gpu.ask("cuMemCreate", ctypes.byref(handle), size, properties(HOST_NUMA, node), 0)
    note("cuMemCreate", made)
    if not made["answer"].startswith("0 "):
        return
    address, (other, _) = gpu.reserve(size), gpu.mapped(size)
    host, stream = gpu.pinned(size), gpu.stream()
    note("cuMemMap", gpu.ask("cuMemMap", address, size, 0, handle, 0))
    note("cuMemSetAccess device", gpu.ask("cuMemSetAccess", address, size, access(DEVICE, 0), 1))
    seen = (ctypes.c_uint32 * (size // 4)).from_address(host)
    for word, (name, arguments) in enumerate((
            ("cuMemsetD8Async", (address, 0x11, size, stream)),
            ("cuMemcpyHtoDAsync_v2", (address, host, size, stream)),
            ("cuMemcpyDtoHAsync_v2", (host, address, size, stream)),
            ("cuMemcpyDtoDAsync_v2", (other, address, size, stream)),
            ("cuMemcpyDtoDAsync_v2", (address, other, size, stream)),
            ("cuMemcpyAsync", (address, host, size, stream)),
            ("cuMemcpyHtoD_v2", (address, host, size)),
            ("cuMemcpyDtoH_v2", (host, address, size)))):
        told = gpu.ask(name, *arguments)
        told["then"] = gpu.named(gpu.call("cuStreamSynchronize", stream))
        to = "from it" if arguments[0] != address else "to it"
        note(f"{word + 1} {name} {to}", told)
    # Bytes through it, with other ones between.
    ctypes.memset(host, 0x5c, size)
    results = [gpu.call("cuMemcpyHtoDAsync_v2", address, host, size, stream),
               gpu.call("cuStreamSynchronize", stream)]
    ctypes.memset(host, 0, size)
    results += [gpu.call("cuMemcpyDtoHAsync_v2", host, address, size, stream),
                gpu.call("cuStreamSynchronize", stream)]
    note("bytes", not any(results) and set(seen[::997]) == {0x5c5c5c5c})
    for where, words in (("HOST_NUMA", (HOST_NUMA, node)), ("HOST", (2, 0))):
        note(f"cuMemSetAccess {where}", gpu.ask("cuMemSetAccess", address, size, access(*words), 1))
    gpu.answers.about("the processor reads it")
    note("the processor reads", hex(ctypes.c_uint32.from_address(address).value))
    note("cuMemUnmap", gpu.ask("cuMemUnmap", address, size))
    note("cuMemRelease", gpu.ask("cuMemRelease", handle))


def widths(gpu):
    """Each attribute of each kind of pointer, with two canaries: what was written, and how wide."""
    vmm, _ = gpu.mapped(GRANULE)
    plain, managed = ctypes.c_uint64(), ctypes.c_uint64()
    gpu.need("cuMemAlloc_v2", ctypes.byref(plain), GRANULE)
    away, _ = gpu.mapped(GRANULE)
    gpu.need("cuMemUnmap", away, GRANULE)
    pointers = {"mapped": vmm + 64, "cuMemAlloc": plain.value + 64, "away": away + 64,
                "reserved": gpu.reserve(GRANULE), "pinned": gpu.pinned(4096)}
    if not gpu.call("cuMemAllocManaged", ctypes.byref(managed), GRANULE, 1):
        pointers["managed"] = managed.value
    for pointer, address in pointers.items():
        found = {}
        for which, name in enumerate(POINTER):
            if not name:
                continue
            gpu.answers.about(f"cuPointerGetAttribute {name} {pointer}")
            seen, results = [], set()
            for canary in (0xa5, 0x5a):
                box = (ctypes.c_ubyte * 64)(*[canary] * 64)
                results.add(gpu.call("cuPointerGetAttribute", box, which, address))
                seen.append([byte if byte != canary else None for byte in box])
            wide = max((i + 1 for each in seen for i, byte in enumerate(each) if byte is not None),
                       default=0)
            value = [a if a is not None else b for a, b in zip(*seen)][:wide]
            found[f"{which} {name}"] = {
                "answer": ", ".join(map(gpu.named, sorted(results))), "bytes": wide,
                "value": hex(int.from_bytes(bytes(byte or 0 for byte in value), "little"))}
        gpu.answers.note(pointer, found)
    start, size = ctypes.c_uint64(), ctypes.c_size_t()
    for pointer, address in pointers.items():
        told = gpu.ask("cuMemGetAddressRange_v2", ctypes.byref(start), ctypes.byref(size), address)
        gpu.answers.note(f"cuMemGetAddressRange_v2 {pointer}", {
            **told, "from": address - start.value, "size": size.value})


def buffer_ids(gpu):
    """Whether memory that comes to an address again has another id."""
    def id_of(address):
        value = ctypes.c_uint64()
        result = gpu.call("cuPointerGetAttribute", ctypes.byref(value), BUFFER_ID, address)
        return gpu.named(result) if result else value.value
    rounds, plain = [], ctypes.c_uint64()
    for _ in range(4):
        gpu.need("cuMemAlloc_v2", ctypes.byref(plain), 8 * GRANULE)
        rounds.append([hex(plain.value), id_of(plain.value)])
        gpu.need("cuMemFree_v2", plain)
    gpu.answers.note("cuMemAlloc: address, id", rounds)
    address, rounds = gpu.reserve(GRANULE), []
    for _ in range(3):
        result, handle = gpu.create(GRANULE, properties(DEVICE, 0))
        if result:
            raise NotHere(f"cuMemCreate: {gpu.named(result)}")
        gpu.map(address, GRANULE, handle)
        rounds.append([hex(address), id_of(address)])
        gpu.need("cuMemUnmap", address, GRANULE)
        gpu.need("cuMemRelease", handle)
    gpu.answers.note("mapped: address, id", rounds)
