// What modules' images say of kernels' parameters: ELF files made here, whole, cut and broken;
// containers of them; and, where a path is given, one that nvcc made of tests/gpu/kernels.cu.
#include "allocator/preload/images.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

using namespace firn::preload;

namespace {
using Section = std::pair<std::string, std::string>;  // name, bytes

template <class T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}
std::string parameter(uint16_t ordinal, uint16_t offset, uint32_t size, bool newer = false) {
  std::string bytes = newer ? "\x04\x45" : "\x04\x17";
  put<uint16_t>(bytes, 12);
  put<uint32_t>(bytes, 0);
  put(bytes, ordinal);
  put(bytes, offset);
  put<uint32_t>(bytes, newer ? size : size << 18 | 0x1f000);
  return bytes;
}
std::string bank(uint16_t bytes) {
  std::string attribute = "\x03\x19";
  put(attribute, bytes);
  return attribute;
}
const std::string other("\x04\x0a\x08\0abcdefgh\x01\x02\0\0", 16);

std::string elf(const std::vector<Section>& sections) {
  std::string names(1, '\0'), body;
  std::vector<Elf64_Shdr> headers(1);
  for (const auto& [name, bytes] : sections) {
    Elf64_Shdr header{};
    header.sh_name = static_cast<Elf64_Word>(names.size());
    header.sh_type = SHT_PROGBITS;
    header.sh_offset = sizeof(Elf64_Ehdr) + body.size();
    header.sh_size = bytes.size();
    headers.push_back(header);
    names += name + '\0';
    body += bytes;
  }
  Elf64_Shdr header{};
  header.sh_type = SHT_STRTAB;
  header.sh_offset = sizeof(Elf64_Ehdr) + body.size();
  header.sh_size = names.size();
  headers.push_back(header);
  body += names;
  Elf64_Ehdr file{};
  std::memcpy(file.e_ident, ELFMAG, SELFMAG);
  file.e_ident[EI_CLASS] = ELFCLASS64;
  file.e_machine = EM_CUDA;
  file.e_shoff = sizeof file + body.size();
  file.e_shentsize = sizeof(Elf64_Shdr);
  file.e_shnum = static_cast<Elf64_Half>(headers.size());
  file.e_shstrndx = static_cast<Elf64_Half>(headers.size() - 1);
  std::string all(reinterpret_cast<const char*>(&file), sizeof file);
  all += body;
  for (const Elf64_Shdr& each : headers) put(all, each);
  return all;
}

std::string container(const std::vector<std::string>& parts) {
  std::string body, all;
  for (const std::string& part : parts) {
    put<uint32_t>(body, 2 | 0x101 << 16);
    put<uint32_t>(body, 64);
    put<uint64_t>(body, part.size());
    body += std::string(48, '\0') + part;
  }
  put<uint32_t>(all, 0xba55ed50);
  put<uint32_t>(all, 1 | 16 << 16);
  put<uint64_t>(all, body.size());
  return all + body;
}

const Section two{".nv.info.two", other + bank(12) + parameter(1, 8, 4) + parameter(0, 0, 8)};
const std::vector<Slot> two_slots = {{0, 8}, {8, 4}};

TEST(Images, tell_parameters) {
  const Layouts all = layouts_of(
      elf({two, {".nv.info", other}, {".nv.info.none", other},
           {".nv.info.wide", bank(4808) + parameter(0, 0, 4800, true) +
                                 parameter(1, 4800, 8, true)}})
          .data());
  EXPECT_EQ(all, (Layouts{{"two", two_slots}, {"none", {}}, {"wide", {{0, 4800}, {4800, 8}}}}));
}

TEST(Images, what_contradicts_itself_is_not_told) {
  const std::string p0 = parameter(0, 0, 8), p1 = parameter(1, 8, 4);
  for (const std::string& section :
       {bank(12) + p0, bank(8) + p0 + p1, p0 + p1, bank(12) + p1, bank(12) + p0 + p0 + p1,
        bank(12) + p0 + parameter(1, 4, 8), bank(12) + p0 + p1.substr(0, 10),
        bank(12) + p0 + parameter(2, 8, 4)})
    EXPECT_FALSE(layouts_of(elf({{".nv.info.k", section}, two}).data()).contains("k"));
  EXPECT_TRUE(layouts_of(elf({two, two}).data()).empty());
}

// Offset and size in 32 bits are the bank's: the words of a parameter of 4 GiB would be read.
TEST(Images, a_parameter_beyond_the_bank_is_not_told) {
  const std::string section =
      bank(8) + parameter(0, 0, 8) + parameter(1, 16, 0xfffffff8u, true);
  EXPECT_TRUE(layouts_of(elf({{".nv.info.k", section}}).data()).empty());
}

TEST(Images, containers_of_several) {
  const std::string first = elf({two}), same = elf({two, {".nv.info.more", other}});
  const std::string differs = elf({{".nv.info.two", bank(8) + parameter(0, 0, 8)}});
  const std::string packed(100, 'x');  // as a compressed part: no file at all
  EXPECT_EQ(layouts_of(container({packed, first, same}).data()),
            (Layouts{{"two", two_slots}, {"more", {}}}));
  EXPECT_EQ(layouts_of(container({first, same, differs}).data()), (Layouts{{"more", {}}}));
  EXPECT_TRUE(layouts_of(container({packed}).data()).empty());
  const std::string wrapped = container({first});
  std::string wrapper;
  put<uint32_t>(wrapper, 0x466243b1);
  put<uint32_t>(wrapper, 1);
  put(wrapper, wrapped.data());
  wrapper += std::string(64, '\0');
  EXPECT_EQ(layouts_of(wrapper.data()), (Layouts{{"two", two_slots}}));
  EXPECT_TRUE(layouts_of(".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry two()\n"
                         "{ ret; }\n").empty());
  EXPECT_TRUE(layouts_of(nullptr).empty());
}

TEST(Images, cut_short_and_broken_ones_are_survived) {
  const std::string whole = container({elf({two}), elf({two, {".nv.info.more", other}})});
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::vector<char> part(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
    for (const auto& [kernel, slots] : layouts_of(part.data(), part.size()))
      EXPECT_TRUE(kernel != "two" || slots == two_slots) << size;
  }
  std::mt19937 random(7);
  const std::string file = elf({two});
  for (int round = 0; round < 20'000; ++round) {
    std::vector<char> broken(file.begin(), file.end());
    for (int flips = 0; flips < 3; ++flips)
      broken[random() % broken.size()] = static_cast<char>(random());
    (void)layouts_of(broken.data(), broken.size());
  }
}

TEST(Images, of_nvcc) {
  const char* path = std::getenv("FIRN_TEST_CUBIN");
  if (!path) return;  // images_nvcc_test.sh gives one
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  const Layouts all = layouts_of(bytes.data(), bytes.size());
  EXPECT_EQ(all.at("fill"), (std::vector<Slot>{{0, 8}, {8, 8}, {16, 4}}));
  EXPECT_EQ(all.at("mix"), (std::vector<Slot>{{0, 8}, {8, 8}, {16, 8}, {24, 8}, {32, 4}}));
  EXPECT_EQ(all.at("gather"), (std::vector<Slot>{{0, 56}, {56, 8}}));
  EXPECT_EQ(all.size(), 11u);  // of tests/gpu/kernels.cu
}
}  // namespace
