"""A folder of libraries to link against, as old as manylinux_2_28 wants: glibc 2.28 and the
libstdc++ of GCC 8, whatever this machine has.

Usage: old_sysroot.py OUT
Makes OUT/lib with
  - glibc's libraries without their code, with the symbols that 2.28 had, its start files and its
    libc_nonshared.a, as `zig cc` makes them (package ziglang, of the Python that runs this);
  - shims.c, for what compilers and headers of today ask for beyond those;
  - libstdc++.so.6 without its code, with the symbols of GCC 8's, and behind it this compiler's
    libstdc++.a: what is newer is linked in, hidden, and everything else is the process's one
    libstdc++, which exceptions and strings of torch's come from.
Link with -BOUT/lib -LOUT/lib (native_file() writes Meson's). Ends with a message where it cannot.
"""

import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys

GLIBC = "2.28"
# The newest of each version family that manylinux_2_28 may ask for.
NEWEST = {"GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11)}
HERE = pathlib.Path(__file__).resolve().parent


def run(*words, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"old_sysroot: {' '.join(map(str, words))}:\n{done.stdout}{done.stderr}")
    return done.stdout


def make_glibc(out):
    """zig keeps what it has made of its own glibc in a cache, from where it is taken."""
    import ziglang
    zig = pathlib.Path(ziglang.__file__).parent / "zig"
    cache = out / "zig"
    source = out / "main.c"
    source.write_text("int main(void) { return 0; }\n")
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(cache),
                   "ZIG_LOCAL_CACHE_DIR": str(cache)}
    target = f"{os.uname().machine}-linux-gnu.{GLIBC}"
    for option in ("-no-pie", "-pie"):
        run(zig, "cc", "-target", target, option, source, "-o", out / "main", env=environment)
    wanted = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1",
              "libutil.so.1", "libresolv.so.2", "libld.so.2", "libc_nonshared.a", "crt1.o",
              "Scrt1.o")
    for name in wanted:
        found = sorted(cache.glob(f"o/*/{name}"), key=lambda path: path.stat().st_mtime)
        if not found:
            sys.exit(f"old_sysroot: zig made no {name}")
        shutil.copy(found[-1], out / "lib" / name)
    join_aliases(out / "lib/libc.so.6")


# Names of glibc's own for one variable of its own. A program that uses one of them has the variable
# (a copy relocation), under all names that its libraries have for it; zig keeps them apart.
ALIASES = {"environ": "__environ", "_environ": "__environ", "daylight": "__daylight",
           "timezone": "__timezone", "tzname": "__tzname", "program_invocation_name": "__progname_full",
           "program_invocation_short_name": "__progname"}
DYNSYM = 11            # SHT_DYNSYM
WEAK_OBJECT = 2 << 4 | 1  # STB_WEAK, STT_OBJECT: of those the linker looks for the strong name


def join_aliases(library):
    """Gives each of ALIASES the symbol of the name that glibc itself uses."""
    image = bytearray(library.read_bytes())
    (sections,) = struct.unpack_from("<Q", image, 0x28)
    size, count = struct.unpack_from("<HH", image, 0x3a)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, sections + i * size) for i in range(count)]
    (symbols,) = [header for header in headers if header[1] == DYNSYM]
    strings = headers[symbols[6]][4]
    offsets = {}
    for at in range(symbols[4], symbols[4] + symbols[5], 24):
        begin = strings + struct.unpack_from("<I", image, at)[0]
        name = image[begin:image.index(b"\0", begin)].decode()
        offsets.setdefault(name, []).append(at)
    for name, glibcs in ALIASES.items():
        for at in offsets.get(name, []):
            (own,) = offsets[glibcs]
            image[at + 4] = WEAK_OBJECT
            image[at + 6:at + 24] = image[own + 6:own + 24]  # section, value, size
    library.write_bytes(image)


def make_scripts(out):
    lib = out / "lib"
    run("gcc", "-O2", "-fPIC", "-fvisibility=hidden", "-c", HERE / "shims.c", "-o", lib / "shims.o")
    run("ar", "rcs", lib / "libfirn_shims.a", lib / "shims.o")
    (lib / "libc.so").write_text(
        f"GROUP ( {lib}/libc.so.6 {lib}/libc_nonshared.a {lib}/libfirn_shims.a "
        f"AS_NEEDED ( {lib}/libpthread.so.0 {lib}/libdl.so.2 {lib}/librt.so.1 "
        f"{lib}/libld.so.2 ) )\n")
    for name in ("libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1"):
        (lib / name.rsplit(".", 1)[0]).write_text(f"INPUT ( AS_NEEDED ( {lib}/{name} ) )\n")


def old_symbols(library):
    """[(name, version, type, size)] of the default versions that are old enough."""
    found = []
    for line in run("readelf", "--dyn-syms", "-W", library).splitlines():
        words = line.split()
        if len(words) < 8 or words[6] == "UND" or "@@" not in words[7]:
            continue
        name, version = words[7].split("@@")
        family, _, numbers = version.partition("_")
        parts = re.fullmatch(r"\d+(\.\d+)*", numbers)
        if family in NEWEST and parts and \
                tuple(int(part) for part in numbers.split(".")) <= NEWEST[family]:
            found.append((name, version, words[3], int(words[2], 0)))
    if not found:
        sys.exit(f"old_sysroot: no symbols in {library}")
    return found


SECTIONS = {"FUNC": ".text", "IFUNC": ".text", "TLS": ".tbss", "OBJECT": ".bss"}
SECTION_WORDS = {".text": ".text", ".bss": ".bss",
                 ".tbss": '.section .tbss,"awT",@nobits'}


def make_libstdcxx(out):
    lib = out / "lib"
    library = run("g++", "-print-file-name=libstdc++.so.6").strip()
    symbols = old_symbols(library)
    code, versions = [], {}
    for name, version, kind, size in symbols:
        section = SECTIONS.get(kind, ".bss")
        code += [SECTION_WORDS[section], ".balign 32", f".globl {name}",
                 f".type {name}, @{'function' if section == '.text' else 'tls_object' if section == '.tbss' else 'object'}",
                 f".size {name}, {size}", f"{name}:", f".skip {max(size, 1)}"]
        versions.setdefault(version, []).append(name)
    (out / "libstdcxx.s").write_text("\n".join(code) + '\n.section .note.GNU-stack,"",@progbits\n')
    script = "".join(f"{version} {{ global: {'; '.join(names)}; }};\n"
                     for version, names in sorted(versions.items()))
    (out / "libstdcxx.map").write_text(script + "HIDDEN { local: *; };\n")
    run("gcc", "-shared", "-nostdlib", "-Wl,-soname,libstdc++.so.6",
        f"-Wl,--version-script,{out}/libstdcxx.map", "-o", lib / "libstdc++.so.6",
        out / "libstdcxx.s")
    archive = run("g++", "-print-file-name=libstdc++.a").strip()
    (lib / "libstdc++.so").write_text(f"INPUT ( {lib}/libstdc++.so.6 {archive} )\n")


def native_file(out):
    """Meson's words for it."""
    lib = out / "lib"
    hidden = "libstdc++.a:libfirn_shims.a:libc_nonshared.a"
    # (This machine's libgcc_s.so.1 wants more of glibc than 2.28 has.)
    links = [f"-B{lib}/", f"-L{lib}", f"-Wl,--exclude-libs,{hidden}",
             "-Wl,--allow-shlib-undefined"]
    (out / "native.ini").write_text(
        "[built-in options]\n"
        f"c_link_args = {links}\n"
        f"cpp_link_args = {links}\n"
        "cpp_args = ['-DFMT_HEADER_ONLY']\n")


def main():
    out = pathlib.Path(sys.argv[1]).resolve()
    shutil.rmtree(out, ignore_errors=True)
    (out / "lib").mkdir(parents=True)
    make_glibc(out)
    make_scripts(out)
    make_libstdcxx(out)
    native_file(out)


if __name__ == "__main__":
    main()
