// What a job answers a viewer, as `firn top`, `firn stats` and `firn spill` show it. An input: the
// answer's text; below "== before" the answer that came before it.
//
// Beyond no crash: nothing that a job says ends the viewer (no exception); every line is one line
// of printable characters; as JSON the look is written and read as the same.
#include <string>

#include "allocator/base/json_text.h"
#include "allocator/command/job_socket.h"
#include "allocator/command/job_text.h"
#include "allocator/command/looks.h"
#include "tests/fuzz/fuzz.h"

using namespace firn;
using namespace firn::command;
using Json = nlohmann::ordered_json;

namespace {

void check_line(std::string_view line) {
  for (const char c : line)
    FUZZ_CHECK(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f, "control character %d", c);
}

void check_lines(std::string_view text) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    check_line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto texts = fuzz::texts_of(data, size);
  const Json document = answer_document(texts[""]);
  if (document.is_null()) return 0;
  try {
    check_lines(stats_text(document));
    check_lines(spill_text(document));
    Json job = {{"pid", 7}, {"command", "a command"}};
    job.update(document);
    add_rates(job, answer_document(texts["before"]), 0.5);
    Json look = {{"jobs", Json::array({std::move(job)})}};
    for (const size_t width : {SIZE_MAX, size_t{80}, size_t{1}})
      for (const std::string& line : top_lines(look, 3, width)) check_line(line);
    const std::string text = json_text(look);
    FUZZ_CHECK(json_text(Json::parse(text)) == text, "as JSON it is another");
  } catch (const std::exception& error) {
    FUZZ_CHECK(false, "a job ends its viewer: %s", error.what());
  }
  return 0;
}
