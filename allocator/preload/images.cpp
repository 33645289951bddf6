#include "allocator/preload/images.h"

#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>

namespace firn::preload {

namespace {
// nvcc's wrapper: magic, version, address of the container. The container: magic, version, bytes of
// its header, bytes of what follows. Each part of that: kind, flags of it, bytes of its header,
// bytes of what follows.
constexpr uint32_t wrapper_magic = 0x466243b1, container_magic = 0xba55ed50;
constexpr size_t container_header = 16, part_header = 16;
constexpr size_t parts_most = 1u << 12;

// Attributes of a section .nv.info.KERNEL: a byte for the value's format, a byte for the attribute,
// and two of value, or of the length of the value that follows.
constexpr unsigned told_by_size = 4, parameter = 0x17, parameter_v2 = 0x45, bank_bytes = 0x19;
constexpr std::string_view section_prefix = ".nv.info.";

template <class T>
T take(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// The parameters that one section describes; nothing where it contradicts itself.
std::optional<std::vector<Slot>> slots_of(std::string_view section) {
  std::map<unsigned, Slot> by_ordinal;
  uint64_t bank = 0, end = 0;  // (a parameter may say that it has 4 GiB)
  for (size_t at = 0; at + 4 <= section.size();) {
    const unsigned told = static_cast<uint8_t>(section[at]);
    const unsigned attribute = static_cast<uint8_t>(section[at + 1]);
    const uint16_t value = take<uint16_t>(section.data() + at + 2);
    at += 4;
    if (attribute == bank_bytes && told != told_by_size) bank = value;
    if (told != told_by_size) continue;
    if (section.size() - at < value) return std::nullopt;
    if (attribute == parameter || attribute == parameter_v2) {
      if (value < 12) return std::nullopt;
      const char* is = section.data() + at;
      const uint32_t word = take<uint32_t>(is + 8);
      const Slot slot{take<uint16_t>(is + 6), attribute == parameter ? word >> 18 : word};
      if (!by_ordinal.emplace(take<uint16_t>(is + 4), slot).second) return std::nullopt;
      end = std::max(end, uint64_t{slot.offset} + slot.bytes);
    }
    at += value;
  }
  if (end != bank) return std::nullopt;
  std::vector<Slot> slots;
  for (const auto& [ordinal, slot] : by_ordinal) {
    if (ordinal != slots.size() || slot.bytes == 0) return std::nullopt;
    if (!slots.empty() && slot.offset < slots.back().offset + slots.back().bytes)
      return std::nullopt;
    slots.push_back(slot);
  }
  return slots;
}

/// The layouts in an ELF file; empty where it cannot be parsed.
Layouts layouts_of_elf(const char* bytes, size_t size) {
  Layouts all;
  if (size < sizeof(Elf64_Ehdr) || std::memcmp(bytes, ELFMAG, SELFMAG) != 0 ||
      bytes[EI_CLASS] != ELFCLASS64)
    return all;
  const auto header = take<Elf64_Ehdr>(bytes);
  if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shstrndx >= header.e_shnum ||
      header.e_shoff > size || size_t{header.e_shnum} * sizeof(Elf64_Shdr) > size - header.e_shoff)
    return all;
  const auto section = [&](size_t index) {
    return take<Elf64_Shdr>(bytes + header.e_shoff + index * sizeof(Elf64_Shdr));
  };
  const auto within = [&](const Elf64_Shdr& is) {
    return is.sh_type != SHT_NOBITS && is.sh_offset <= size && is.sh_size <= size - is.sh_offset;
  };
  const Elf64_Shdr names = section(header.e_shstrndx);
  if (!within(names)) return all;
  std::set<std::string> twice;
  for (size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr is = section(i);
    if (!within(is) || is.sh_name >= names.sh_size) continue;
    const char* begin = bytes + names.sh_offset + is.sh_name;
    const std::string_view name(begin, ::strnlen(begin, names.sh_size - is.sh_name));
    if (!name.starts_with(section_prefix)) continue;
    std::string kernel(name.substr(section_prefix.size()));
    const auto slots = slots_of({bytes + is.sh_offset, is.sh_size});
    if (!slots || !all.emplace(kernel, *slots).second) twice.insert(std::move(kernel));
  }
  for (const std::string& kernel : twice) all.erase(kernel);
  return all;
}

/// Adds one image's layouts; kernels with two different ones become `disputed`.
void add(Layouts& all, std::set<std::string>& disputed, Layouts more) {
  for (auto& [kernel, slots] : more) {
    const auto [known, fresh] = all.emplace(kernel, slots);
    if (!fresh && known->second != slots) disputed.insert(kernel);
  }
}

Layouts of_container(const char* container, size_t most) {
  Layouts all;
  std::set<std::string> disputed;
  const size_t header = take<uint16_t>(container + 6);
  const uint64_t bytes = take<uint64_t>(container + 8);
  if (header < container_header || header > most) return all;
  const char* at = container + header;
  uint64_t left = std::min<uint64_t>(bytes, most - header);
  for (size_t part = 0; part < parts_most && left >= part_header; ++part) {
    const uint64_t head = take<uint32_t>(at + 4), body = take<uint64_t>(at + 8);
    if (head < part_header || head > left || body > left - head) break;
    add(all, disputed, layouts_of_elf(at + head, body));
    at += head + body;
    left -= head + body;
  }
  for (const std::string& kernel : disputed) all.erase(kernel);
  return all;
}

/// The file's length by its headers.
size_t elf_bytes(const char* image) {
  const auto header = take<Elf64_Ehdr>(image);
  size_t end = header.e_shoff + size_t{header.e_shnum} * header.e_shentsize;
  return std::max(end, size_t{header.e_phoff} + size_t{header.e_phnum} * header.e_phentsize);
}
}  // namespace

Layouts layouts_of(const void* image, size_t most) {
  const auto* bytes = static_cast<const char*>(image);
  if (!bytes || most < sizeof(Elf64_Ehdr)) return {};
  if (take<uint32_t>(bytes) == wrapper_magic && most == SIZE_MAX) {
    bytes = take<const char*>(bytes + 8);
    if (!bytes) return {};
  }
  if (take<uint32_t>(bytes) == container_magic) return of_container(bytes, most);
  if (std::memcmp(bytes, ELFMAG, SELFMAG) != 0) return {};
  return layouts_of_elf(bytes, std::min(elf_bytes(bytes), most));
}

}  // namespace firn::preload
