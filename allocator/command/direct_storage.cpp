// Locks: none.
#include "allocator/command/direct_storage.h"

#include <fmt/format.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <fstream>

namespace firn::command {
namespace {

namespace fs = std::filesystem;

// "0000:3b:00.0"
bool is_pci_address(std::string_view name) {
  const size_t colon = name.find(':');
  if (colon == std::string_view::npos || colon < 4 || name.size() != colon + 8) return false;
  for (size_t i = 0; i < name.size(); ++i) {
    const char wanted = i == colon || i == colon + 3 ? ':' : i == colon + 6 ? '.' : 'x';
    const bool fits = wanted == 'x' ? std::isxdigit(static_cast<unsigned char>(name[i])) != 0
                                    : name[i] == wanted;
    if (!fits) return false;
  }
  return true;
}

// The number that the file begins with: "32.0 GT/s PCIe", "16"; 0: none.
double first_number(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  double value = 0;
  std::from_chars(line.data(), line.data() + line.size(), value);
  return value > 0 && value < 1e6 ? value : 0;
}

PciPath path_above(const fs::path& device) {
  std::error_code error;
  const fs::path real = fs::canonical(device, error);
  PciPath path;
  if (error) return path;
  fs::path at;
  for (const fs::path& part : real) {
    at /= part;
    if (!is_pci_address(part.native())) continue;
    PciLink link;
    link.address = part.native();
    link.gt_s = first_number(at / "max_link_speed");
    // 255 lanes are a bridge's that has no link.
    if (const double lanes = first_number(at / "max_link_width"); lanes <= 32)
      link.lanes = static_cast<int>(lanes);
    path.push_back(std::move(link));
  }
  return path;
}

void add_disks(const fs::path& block, std::vector<PciPath>& disks, int depth) {
  std::error_code error;
  bool made_of_others = false;
  if (depth > 0)
    for (const fs::directory_entry& below : fs::directory_iterator(block / "slaves", error)) {
      made_of_others = true;
      add_disks(below.path(), disks, depth - 1);
    }
  if (made_of_others) return;
  if (PciPath path = path_above(block); !path.empty()) disks.push_back(std::move(path));
}

// The last switch above both: of the parts that the paths share, the one that has both below it.
const PciLink* shared_by(const PciPath& a, const PciPath& b) {
  const PciLink* shared = nullptr;
  for (size_t i = 0; i + 1 < a.size() && i + 1 < b.size() && a[i].address == b[i].address; ++i)
    shared = &a[i];
  return shared;
}

// A link is as fast as the slower of its two ends: the other one is the bridge above.
double speed_of(const PciPath& path, const PciLink* of) {
  const double own = of->bytes_s();
  if (of == &path.front()) return own;
  const double above = (of - 1)->bytes_s();
  return own > 0 && above > 0 ? std::min(own, above) : std::max(own, above);
}

std::string gb(double bytes_s) { return fmt::format("{:.1f} GB/s", bytes_s / 1e9); }

std::string reason(const DirectStorage& found, size_t dirs) {
  if (dirs == 0) return "no directory is named, and so no SSD";
  if (found.link_bytes_s == 0) return "the device's link is not known here";
  std::string text =
      fmt::format("the device's link carries {} each way, past host memory or not",
                  gb(found.link_bytes_s));
  if (found.disks_bytes_s == 0) return text + "; the disks were not measured";
  if (!found.would_help && !found.shared_switch)
    return text + "; where some of the disks are is not known, behind one switch with it perhaps";
  if (!found.shared_switch)
    return text + fmt::format("; by way of host memory, the disks' {} take {} of its bandwidth",
                              gb(found.disks_bytes_s), gb(found.host_memory_bytes_s));
  if (!found.would_help && found.uplink_bytes_s > 0)
    return text + "; a switch joins device and disk, but where the other disks are is not known";
  if (found.uplink_bytes_s == 0)
    return text + "; a switch joins device and disk, but the speed of its uplink is not known";
  return text + fmt::format("; the uplink of the switch that joins device and disk carries {}, {} "
                            "than the {} that its disks read and write",
                            gb(found.uplink_bytes_s), *found.would_help ? "less" : "no less",
                            gb(found.crossing_bytes_s));
}

}  // namespace

double PciLink::bytes_s() const {
  if (gt_s <= 0 || lanes <= 0) return 0;
  const double encoding = gt_s <= 5 ? 8. / 10 : gt_s <= 32 ? 128. / 130 : 236. / 256;
  return gt_s * 1e9 / 8 * lanes * encoding * 256 / 280;
}

PciPath pci_path_of(const std::string& address, const std::string& root) {
  std::string name = address;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  // (The driver's domain may have eight digits.)
  while (name.size() > 12 && name.front() == '0') name.erase(0, 1);
  if (!is_pci_address(name)) return {};
  return path_above(root + "/sys/bus/pci/devices/" + name);
}

std::vector<PciPath> disk_paths_of(dev_t device, const std::string& root) {
  std::error_code error;
  const fs::path block = fs::canonical(
      fmt::format("{}/sys/dev/block/{}:{}", root, ::major(device), ::minor(device)), error);
  std::vector<PciPath> disks;
  if (!error) add_disks(block, disks, 4);
  return disks;
}

DirectStorage judge_direct_storage(const PciPath& device, const std::vector<DiskSpeed>& dirs,
                                   const std::string& root) {
  DirectStorage found;
  std::error_code error;
  found.driver_loaded = fs::exists(root + "/sys/module/nvidia_fs", error);
  if (!device.empty()) found.link_bytes_s = speed_of(device, &device.back());
  bool all_known = true;
  std::vector<std::string> seen;  // two directories may be on one disk
  for (const DiskSpeed& dir : dirs) {
    const size_t before = seen.size();
    for (const PciPath& disk : dir.disks)
      if (std::find(seen.begin(), seen.end(), disk.back().address) == seen.end())
        seen.push_back(disk.back().address);
    if (!dir.disks.empty() && seen.size() == before) continue;
    all_known &= !dir.disks.empty();
    found.disks_bytes_s += dir.read_bytes_s + dir.write_bytes_s;
    const auto count = static_cast<double>(dir.disks.size());
    for (const PciPath& disk : dir.disks) {
      const PciLink* shared = shared_by(device, disk);
      if (shared == nullptr) continue;
      found.shared_switch = true;
      found.crossing_bytes_s += (dir.read_bytes_s + dir.write_bytes_s) / count;
      if (const double speed = speed_of(device, shared);
          speed > 0 && (found.uplink_bytes_s == 0 || speed < found.uplink_bytes_s))
        found.uplink_bytes_s = speed;
    }
  }
  found.host_memory_bytes_s = 2 * found.disks_bytes_s;
  if (found.link_bytes_s > 0 && found.disks_bytes_s > 0 && all_known &&
      (!found.shared_switch || found.uplink_bytes_s > 0))
    found.would_help = found.shared_switch && found.crossing_bytes_s > found.uplink_bytes_s;
  found.why = reason(found, dirs.size());
  return found;
}

}  // namespace firn::command
