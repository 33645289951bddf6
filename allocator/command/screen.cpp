#include "allocator/command/screen.h"

#include <clocale>
#include <cstdio>
#include <cstdlib>

// Its macros would replace C++ names.
#define NCURSES_NOMACROS
#include <curses.h>

#include <algorithm>

namespace firn::command {
namespace {

constexpr size_t more_first = 3, more_most = 50;

/// The terminal under ncurses; restored however this scope ends.
class Terminal {
 public:
  Terminal() : screen_(::newterm(nullptr, stdout, stdin)) {
    if (!screen_) return;
    ::cbreak();
    ::noecho();
    ::keypad(stdscr, TRUE);
    ::curs_set(0);
  }
  ~Terminal() {
    if (!screen_) return;
    ::endwin();
    ::delscreen(screen_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  bool ok() const { return screen_ != nullptr; }

 private:
  SCREEN* screen_;
};

void draw(const std::vector<std::string>& lines, size_t first) {
  ::erase();
  for (int row = 0; row < LINES; ++row) {
    const size_t line = row == 0 ? 0 : first + static_cast<size_t>(row);
    if (line >= lines.size()) break;
    if (row == 0) ::attron(A_REVERSE);
    ::mvaddnstr(row, 0, lines[line].c_str(), COLS);
    if (row == 0) {
      for (int column = getcurx(stdscr); column < COLS && getcury(stdscr) == 0; ++column)
        ::addch(' ');
      ::attroff(A_REVERSE);
    }
  }
  ::refresh();
}

}  // namespace

Result<void> show_screen(const ScreenLines& lines, std::chrono::milliseconds between) {
  std::setlocale(LC_CTYPE, "");
  Terminal terminal;
  if (!terminal.ok()) {
    const char* kind = std::getenv("TERM");
    return make_error(Code::not_supported, 0,
                      std::string("unknown terminal (TERM=") + (kind ? kind : "") +
                          "); --once prints one snapshot");
  }
  size_t first = 0, more = more_first;
  for (;;) {
    const std::vector<std::string> shown = lines(more, static_cast<size_t>(std::max(COLS, 1)));
    const auto until = std::chrono::steady_clock::now() + between;
    for (bool again = false; !again;) {
      const size_t page = static_cast<size_t>(std::max(LINES - 1, 1));  // below the head
      first = std::min(first, shown.size() > page + 1 ? shown.size() - page - 1 : 0);
      draw(shown, first);
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          until - std::chrono::steady_clock::now());
      if (left.count() <= 0) break;
      ::timeout(static_cast<int>(left.count()));
      switch (::getch()) {
        case 'q': case 'Q': case 27: return {};
        case KEY_UP: case 'k': first -= first > 0; break;
        case KEY_DOWN: case 'j': ++first; break;
        case KEY_PPAGE: first -= std::min(first, page); break;
        case KEY_NPAGE: first += page; break;
        case KEY_RESIZE: again = true; break;  // other columns have room
        case '+': more = std::min(more + 1, more_most); again = true; break;
        case '-': more -= more > 0; again = true; break;
        default: break;
      }
    }
  }
}

}  // namespace firn::command
