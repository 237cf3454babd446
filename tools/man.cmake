# SPDX-License-Identifier: MulanPSL-2.0
# Writes the manual pages into OUT: every program prints its own (`--man`), from the tables that its help comes from.
# Called by the target `man`: cmake -DSYSTRACE=... -DCLI=... -DOUT=... -P tools/man.cmake
function(page name)
  execute_process(COMMAND ${ARGN} OUTPUT_FILE ${OUT}/${name}.1.part RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "no manual page of ${name}: ${ARGN} ended with ${status}")
  endif()
  file(RENAME ${OUT}/${name}.1.part ${OUT}/${name}.1)
endfunction()

file(MAKE_DIRECTORY ${OUT})
page(sysTrace_cli ${CLI} --man)
page(systrace ${SYSTRACE} --man)
execute_process(COMMAND ${SYSTRACE} --list-commands OUTPUT_VARIABLE names OUTPUT_STRIP_TRAILING_WHITESPACE)
string(REPLACE "\n" ";" names "${names}")
foreach(name ${names})
  string(REPLACE " " "-" file ${name})
  string(REPLACE " " ";" words ${name})
  page(systrace-${file} ${SYSTRACE} ${words} --man)
endforeach()
