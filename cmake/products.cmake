# Products of the build: what goes into jobs, and the programs around it. Included by CMakeLists.txt.

# The built-in list of Python functions is one file: put into the agent as it stands, and installed for users to copy.
set(python_list ${CMAKE_SOURCE_DIR}/src/agent/python/default_list.list)
set_source_files_properties(src/agent/python/func_list.c PROPERTIES
  COMPILE_DEFINITIONS "ST_PYTHON_LIST=\"${python_list}\"" OBJECT_DEPENDS ${python_list})

# --- the agent ------------------------------------------------------------------------------------------------------
# The agent is compiled on its own (hidden symbols, initial-exec TLS), from the sources of the libc-only storeys.
file(GLOB_RECURSE agent_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/agent/*.c)
foreach(lower safe base wire spool)
  file(GLOB_RECURSE more CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${lower}/*.c)
  list(APPEND agent_sources ${more})
endforeach()
add_library(sysTrace SHARED ${agent_sources})
target_link_libraries(sysTrace PRIVATE st_flags)
target_compile_definitions(sysTrace PRIVATE ST_AGENT=1)
target_compile_options(sysTrace PRIVATE -fvisibility=hidden -ftls-model=initial-exec -fno-plt -ffunction-sections
  -fdata-sections -include ${CMAKE_SOURCE_DIR}/src/safe/compat_glibc.h)
target_link_options(sysTrace PRIVATE -Wl,-z,now -Wl,-z,nodelete -Wl,-z,relro -Wl,--gc-sections
  -Wl,--version-script=${CMAKE_SOURCE_DIR}/src/agent/exports.map)
if(NOT ST_SANITIZE) # a symbol that nobody has would be fatal to every process that preloads the library
  target_link_options(sysTrace PRIVATE -Wl,-z,defs)
endif()
set_target_properties(sysTrace PROPERTIES LINK_DEPENDS ${CMAKE_SOURCE_DIR}/src/agent/exports.map)

# libsystrace-ftrace.so: the recorder of kernel events for other people's programs (include/systrace/ftrace.h).
file(GLOB ftrace_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/probe/ftrace/*.c ${CMAKE_SOURCE_DIR}/src/probe/pidmap.c
  ${CMAKE_SOURCE_DIR}/src/probe/proc_tasks.c)
add_library(systrace-ftrace SHARED ${ftrace_sources})
target_link_libraries(systrace-ftrace PRIVATE st_flags st_spool Threads::Threads)
if(ZSTD_FOUND)
  target_link_libraries(systrace-ftrace PRIVATE PkgConfig::ZSTD)
endif()
target_link_options(systrace-ftrace PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/src/probe/ftrace/exports.map)
set_target_properties(systrace-ftrace PROPERTIES SOVERSION 0 VERSION ${PROJECT_VERSION}
  LINK_DEPENDS ${CMAKE_SOURCE_DIR}/src/probe/ftrace/exports.map)

# sysTrace_cli controls agents; systrace holds every other command. Both take their commands from src/cli/cmd_*.c.
file(GLOB cli_shared CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cli/*.c)
list(REMOVE_ITEM cli_shared ${CMAKE_SOURCE_DIR}/src/cli/systrace.c ${CMAKE_SOURCE_DIR}/src/cli/sysTrace_cli.c
  ${CMAKE_SOURCE_DIR}/src/cli/systrace-failslow.c)
# which plugins and vendor parts the agent has, for messages and `systrace doctor`: one file each
file(GLOB agent_plugins CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}/src/agent/plugin ${CMAKE_SOURCE_DIR}/src/agent/plugin/*.c)
list(TRANSFORM agent_plugins REPLACE "\\.c$" "")
list(JOIN agent_plugins "," agent_plugins)
file(GLOB agent_vendors CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}/src/agent/vendor ${CMAKE_SOURCE_DIR}/src/agent/vendor/*.c)
list(TRANSFORM agent_vendors REPLACE "\\.c$" "")
list(JOIN agent_vendors "," agent_vendors)
set_source_files_properties(src/cli/build_info.c PROPERTIES COMPILE_DEFINITIONS
  "ST_AGENT_PLUGINS=\",${agent_plugins},\";ST_AGENT_VENDORS=\",${agent_vendors},\"")
add_library(st_cli STATIC ${cli_shared})
target_link_libraries(st_cli PUBLIC st_convert st_analyze st_probe st_trace st_spool Threads::Threads m)
foreach(program systrace sysTrace_cli systrace-failslow)
  add_executable(${program} ${CMAKE_SOURCE_DIR}/src/cli/${program}.c)
  target_link_libraries(${program} PRIVATE st_cli)
endforeach()

# manual pages are printed by the programs themselves; a cross build has no machine to run them on
if(NOT CMAKE_CROSSCOMPILING)
  add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/man/systrace.1 DEPENDS systrace sysTrace_cli ${CMAKE_SOURCE_DIR}/tools/man.cmake
    COMMAND ${CMAKE_COMMAND} -DSYSTRACE=$<TARGET_FILE:systrace> -DCLI=$<TARGET_FILE:sysTrace_cli>
      -DOUT=${CMAKE_BINARY_DIR}/man -P ${CMAKE_SOURCE_DIR}/tools/man.cmake
    COMMENT "Writing the manual pages")
  add_custom_target(man ALL DEPENDS ${CMAKE_BINARY_DIR}/man/systrace.1)
  install(DIRECTORY ${CMAKE_BINARY_DIR}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 FILES_MATCHING PATTERN "*.1")
endif()

# The agent's sources once more in a static library, so that unit tests reach hidden functions.
add_library(st_agent STATIC EXCLUDE_FROM_ALL ${agent_sources})
target_link_libraries(st_agent PUBLIC st_flags Threads::Threads dl)
target_compile_definitions(st_agent PRIVATE ST_AGENT=1)
target_compile_options(st_agent PRIVATE -include ${CMAKE_SOURCE_DIR}/src/safe/compat_glibc.h)
set_target_properties(st_agent PROPERTIES POSITION_INDEPENDENT_CODE ON)

install(TARGETS systrace sysTrace_cli systrace-failslow RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS sysTrace systrace-ftrace LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${python_list} DESTINATION ${CMAKE_INSTALL_DATADIR}/systrace RENAME python_functions.list)
