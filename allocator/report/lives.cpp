#include "allocator/report/lives.h"

#include <algorithm>
#include <charconv>

namespace firn::report {

Result<Lives> Lives::read(TraceFile& file) {
  Lives lives;
  Row row;
  uint64_t begin_ns = 0, last_ns = 0;
  for (;;) {
    Result<bool> more = file.next(row);
    if (!more) return more.error();
    if (!*more) break;
    if (lives.rows++ == 0) begin_ns = last_ns = row.time_ns;
    // A thread may write its row after another's, though it read the clock before.
    last_ns = std::max(last_ns, row.time_ns);
    lives.take(row, std::max(row.time_ns, begin_ns) - begin_ns);
  }
  if (lives.rows == 0)
    return invalid(file.path() + ": holds no event");
  if (lives.devices.empty()) (void)lives.devices[0];  // the program allocated nothing
  lives.cut = file.cut();
  lives.duration_ns = last_ns - begin_ns;
  for (auto& [number, blocks] : lives.open_)
    for (auto& [address, open] : blocks)
      lives.end(lives.devices[number], open, lives.duration_ns);
  for (auto& [number, device] : lives.devices) {
    const auto by = [](auto& list, auto key) { std::stable_sort(list.begin(), list.end(), key); };
    by(device.stretches, [](const auto& a, const auto& b) { return a.end_ns < b.end_ns; });
    by(device.touches, [](const auto& a, const auto& b) { return a.at_ns < b.at_ns; });
    by(device.samples, [](const auto& a, const auto& b) { return a.at_ns < b.at_ns; });
  }
  return lives;
}

void Lives::take(const Row& row, uint64_t at_ns) {
  const std::string_view event = row.event;
  if (event == "begin") {
    process = value_of(row.detail, "pid");
    started_s = value_of(row.detail, "at");
    host_bytes = value_of(row.detail, "host");
    store = value_of(row.detail, "store") != 0;
    policy = text_of(row.detail, "policy");
    command = text_of(row.detail, "command");
  } else if (event == "end") {
    ended = true;
    std::map<std::string, uint64_t>& totals = devices[row.device].totals;
    for (std::string_view rest = row.detail; !rest.empty();) {
      const size_t end = std::min(rest.find(';'), rest.size());
      const std::string_view each = rest.substr(0, end);
      if (const size_t equals = each.find('='); equals != std::string_view::npos) {
        const std::string_view name = each.substr(0, equals);
        totals[std::string(name)] = value_of(each, name);
      }
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  } else if (event == "sample") {
    take_sample(row, at_ns);
  } else if (event == "pinned") {
    devices[row.device].pinned.push_back({at_ns, row.bytes, word(row.detail)});
  } else if (event == "notice") {
    devices[row.device].notices.push_back({at_ns, std::string(row.detail)});
  } else if (event == "stall") {
    take_stall(row, at_ns);
  } else if (event == "site") {
    take_site(row);
  } else {
    take_block(row, at_ns);
  }
}

uint32_t Lives::word(std::string_view text) {
  const auto [at, fresh] =
      word_numbers_.try_emplace(std::string(text), static_cast<uint32_t>(words.size()));
  if (fresh) words.emplace_back(text);
  return at->second;
}

void Lives::move(DeviceLives& device, Open& open, Where where, uint64_t at_ns) {
  at_ns = std::max(at_ns, open.since_ns);
  device.stretches.push_back({open.life, open.where, open.since_ns, at_ns});
  open.where = where;
  open.since_ns = at_ns;
}

void Lives::end(DeviceLives& device, Open& open, uint64_t at_ns) {
  move(device, open, open.where, at_ns);
  device.lives[open.life].died_ns = open.since_ns;
}

void Lives::take_block(const Row& row, uint64_t at_ns) {
  DeviceLives& device = devices[row.device];
  auto& blocks = open_[row.device];
  const std::string_view event = row.event;
  const auto found = blocks.find(row.block);
  if (event == "alloc") {
    if (found != blocks.end()) end(device, found->second, at_ns);
    const auto life = static_cast<uint32_t>(device.lives.size());
    device.lives.push_back({row.block, row.bytes, at_ns, at_ns, none, none});
    blocks[row.block] = {life, Where::device, at_ns};
    return;
  }
  if (found == blocks.end()) return;  // allocated before the trace began, or not by the program
  Open& open = found->second;
  if (event == "touch") {
    device.touches.push_back({open.life, row.detail == "write", at_ns});
    // A block that a touch found on its way out is on the device.
    if (open.where == Where::leaving) move(device, open, Where::device, at_ns);
  } else if (event == "free") {
    end(device, open, at_ns);
    blocks.erase(found);
  } else if (event == "spill") {
    move(device, open, Where::leaving, at_ns);
  } else if (event == "dropped") {
    move(device, open, Where::dropped, at_ns);
  } else if (event == "kept" || event == "arrived" || event == "remade") {
    move(device, open, Where::device, at_ns);
  } else if (event == "copied_out" || event == "unfault") {
    move(device, open, open.where == Where::remaking ? Where::dropped : Where::host, at_ns);
  } else if (event == "written") {
    move(device, open, Where::store, at_ns);
  } else if (event == "fault") {
    move(device, open, Where::faulting, at_ns);
  } else if (event == "remake") {
    move(device, open, Where::remaking, at_ns);
  } else if (event == "prefetch") {
    move(device, open, Where::coming, at_ns);
  } else if (event == "made") {
    device.lives[open.life].maker = word(row.detail);
  } else if (event == "pin") {
    device.lives[open.life].pin_reason = word(row.detail);
  }
}

void Lives::take_sample(const Row& row, uint64_t at_ns) {
  const auto value = [&](std::string_view name) { return value_of(row.detail, name); };
  devices[row.device].samples.push_back(
      {at_ns, value("resident"), value("away_host"), value("away_nvme"), value("dropped"),
       value("hosted") + value("nvme"), value("budget"), value("flight"), value("allocated"),
       value("out"), value("in"), value("written"), value("read")});
}

void Lives::take_stall(const Row& row, uint64_t at_ns) {
  DeviceLives& device = devices[row.device];
  const auto& blocks = open_[row.device];
  const auto found = blocks.find(row.block);
  unsited_[row.stream].emplace_back(row.device, device.stalls.size());
  device.stalls.push_back({at_ns, std::min(row.bytes, at_ns), row.stream,
                           found == blocks.end() ? none : found->second.life,
                           row.detail.empty() ? none : word(row.detail), none});
}

/// The line of the program where the thread's stalls since its last such row were waited for.
void Lives::take_site(const Row& row) {
  auto& stalls = unsited_[row.stream];
  const uint32_t site = word(row.detail);
  for (const auto& [device, index] : stalls) devices[device].stalls[index].site = site;
  stalls.clear();
}

}  // namespace firn::report
