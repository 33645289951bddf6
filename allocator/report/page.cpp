#include "allocator/report/page.h"

#include <zlib.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "allocator/base/html_text.h"
#include "allocator/base/json_text.h"
#include "allocator/report/address_axis.h"
#include "allocator/report/columns.h"
#include "allocator/report/page_parts.h"  // made of page.html, page.css and page_*.js
#include "firn/check.h"

namespace firn::report {

namespace {
using Json = nlohmann::ordered_json;

std::string deflated(const std::string& bytes) {
  uLongf size = ::compressBound(bytes.size());
  std::string out(size, '\0');
  const int done = ::compress2(reinterpret_cast<Bytef*>(out.data()), &size,
                               reinterpret_cast<const Bytef*>(bytes.data()), bytes.size(), 6);
  FIRN_CHECK(done == Z_OK, "zlib: %d", done);  // it can fail only for lack of memory
  out.resize(size);
  return out;
}

std::string base64(const std::string& bytes) {
  static constexpr char letters[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t three = 0;
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    for (size_t j = 0; j < 3; ++j)
      three = three << 8 | (j < count ? static_cast<uint8_t>(bytes[i + j]) : 0);
    for (size_t j = 0; j < 4; ++j)
      out += j <= count ? letters[three >> (18 - 6 * j) & 63] : '=';
  }
  return out;
}

/// Escapes text that must not end the script element it stands in.
std::string in_script(std::string text) {
  for (size_t at = 0; (at = text.find('<', at)) != std::string::npos;)
    text.replace(at, 1, "\\u003c");
  return text;
}

/// The text with each "@NAME@" replaced. Inserted text is not scanned: it may hold such words.
std::string filled(std::string_view text, const std::map<std::string_view, std::string>& marks) {
  std::string out;
  for (size_t at; (at = text.find('@')) != std::string_view::npos;) {
    const size_t end = text.find('@', at + 1);
    FIRN_CHECK(end != std::string_view::npos, "page.html has a lone @");
    const auto found = marks.find(text.substr(at + 1, end - at - 1));
    FIRN_CHECK(found != marks.end(), "page.html has @ where it names nothing");
    out.append(text.substr(0, at)).append(found->second);
    text.remove_prefix(end + 1);
  }
  return out.append(text);
}

constexpr uint64_t unit_least = 512;  // as blocks are aligned

/// One device's records as columns. Times are in ticks, of `tick_ns`; positions in `unit` bytes.
Json device_columns(const DeviceLives& device, Columns& columns, uint64_t tick_ns) {
  const size_t first = columns.table().size();
  const AddressAxis axis(device.lives, unit_least);
  const uint64_t unit = std::max(unit_least, axis.bytes() / (uint64_t{1} << 31) + 1);
  const auto ticks = [&](uint64_t ns) { return ns / tick_ns; };
  columns.f64("life.address", device.lives, [](auto& l) { return l.address; });
  columns.f64("life.bytes", device.lives, [](auto& l) { return l.bytes; });
  columns.u32("life.place", device.lives, [&](auto& l) { return axis.position(l.address) / unit; });
  columns.steps("life.born", device.lives, [&](auto& l) { return ticks(l.born_ns); });
  columns.u32("life.died", device.lives, [&](auto& l) { return ticks(l.died_ns); });
  columns.u32("life.pin", device.lives, [](auto& l) { return l.pin_reason; });
  columns.u32("life.maker", device.lives, [](auto& l) { return l.maker; });
  columns.steps("stretch.life", device.stretches, [](auto& s) { return s.life; });
  columns.u8("stretch.where", device.stretches, [](auto& s) { return static_cast<int>(s.where); });
  columns.steps("stretch.begin", device.stretches, [&](auto& s) { return ticks(s.begin_ns); });
  columns.steps("stretch.end", device.stretches, [&](auto& s) { return ticks(s.end_ns); });
  columns.steps("touch.at", device.touches, [&](auto& t) { return ticks(t.at_ns); });
  columns.steps("touch.life", device.touches, [](auto& t) { return t.life; });
  columns.u8("touch.write", device.touches, [](auto& t) { return t.write; });
  columns.u32("stall.end", device.stalls, [&](auto& s) { return ticks(s.end_ns); });
  columns.f64("stall.ns", device.stalls, [](auto& s) { return s.ns; });
  columns.u32("stall.life", device.stalls, [](auto& s) { return s.life; });
  columns.u32("stall.name", device.stalls, [](auto& s) { return s.name; });
  columns.u32("stall.site", device.stalls, [](auto& s) { return s.site; });
  columns.u32("stall.thread", device.stalls, [](auto& s) { return s.thread; });
  columns.u32("sample.at", device.samples, [&](auto& s) { return ticks(s.at_ns); });
  columns.f64("sample.resident", device.samples, [](auto& s) { return s.resident; });
  columns.f64("sample.host", device.samples, [](auto& s) { return s.away_host; });
  columns.f64("sample.nvme", device.samples, [](auto& s) { return s.away_nvme; });
  columns.f64("sample.dropped", device.samples, [](auto& s) { return s.dropped; });
  columns.f64("sample.budget", device.samples, [](auto& s) { return s.budget; });
  columns.f64("sample.flight", device.samples, [](auto& s) { return s.flight; });
  columns.f64("sample.allocated", device.samples, [](auto& s) { return s.allocated; });
  columns.f64("sample.out", device.samples, [](auto& s) { return s.out; });
  columns.f64("sample.in", device.samples, [](auto& s) { return s.in; });
  columns.f64("sample.written", device.samples, [](auto& s) { return s.written; });
  columns.f64("sample.read", device.samples, [](auto& s) { return s.read; });
  columns.u32("pinned.at", device.pinned, [&](auto& p) { return ticks(p.at_ns); });
  columns.f64("pinned.bytes", device.pinned, [](auto& p) { return p.bytes; });
  columns.u32("pinned.reason", device.pinned, [](auto& p) { return p.reason; });
  Json table = Json::array();
  for (size_t i = first; i < columns.table().size(); ++i) table.push_back(columns.table()[i]);
  return {{"unit", unit}, {"places", axis.bytes() / unit + 1}, {"columns", table}};
}

}  // namespace

std::string make_page(const Lives& lives, const std::string& title, const Json& budgets) {
  Columns columns;
  const uint64_t tick_ns = lives.duration_ns / 0xfffffff0u + 1;
  Json about = {{"title", title},        {"command", lives.command}, {"pid", lives.process},
                {"at", lives.started_s}, {"policy", lives.policy},   {"store", lives.store},
                {"rows", lives.rows},    {"ns", lives.duration_ns},  {"tick_ns", tick_ns},
                {"cut", lives.cut},      {"ended", lives.ended},     {"budgets", budgets},
                {"words", lives.words}};
  about["devices"] = Json::array();
  for (const auto& [number, device] : lives.devices) {
    Json each = device_columns(device, columns, tick_ns);
    each["device"] = number;
    each["totals"] = device.totals;
    each["notices"] = Json::array();
    for (const Notice& notice : device.notices)
      each["notices"].push_back({{"at", notice.at_ns / tick_ns}, {"words", notice.words}});
    about["devices"].push_back(std::move(each));
  }
  return filled(page_html,
                {{"TITLE", html_text(title)},
                 {"CSS", page_css},
                 {"ABOUT", in_script(json_text(about))},
                 {"COLUMNS", base64(deflated(columns.bytes()))},
                 {"JS", page_js}});
}

}  // namespace firn::report
