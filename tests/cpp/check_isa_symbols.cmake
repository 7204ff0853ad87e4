# Kernels of one instruction set must not share functions with the others: the linker keeps one
# copy of an inline function, and that copy may use instructions the processor lacks. So every weak
# symbol that is code must stand in the namespace of its instruction set.
#
#   cmake -DNM=nm -DISA=avx2 -DOBJECTS=a.o,b.o -P check_isa_symbols.cmake
string(REPLACE "," ";" objects "${OBJECTS}")
execute_process(COMMAND ${NM} -C ${objects} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]* W [^\n]*" weak "${symbols}")
set(shared "")
foreach(symbol IN LISTS weak)
  if(NOT symbol MATCHES "npusim::cpu::${ISA}::")
    string(APPEND shared "\n${symbol}")
  endif()
endforeach()
if(shared)
  message(FATAL_ERROR "kernels of ${ISA} could share functions with other sets:${shared}")
endif()
