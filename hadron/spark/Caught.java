package hadron;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;

import org.apache.spark.TaskContext;
import org.apache.spark.api.java.function.FlatMapFunction;

/** The rows of a partition; of one that raises, only what it raised, as text: Spark would end all
    other tasks of the job. Spark's own compiler, which this is for, knows no generics. */
public class Caught implements FlatMapFunction {
    private static final int MOST_CAUSES = 10;
    private static final int ENOUGH_BYTES = 64 << 20;

    public Iterator call(Object given) throws Exception {
        ArrayList kept = new ArrayList();
        try {
            Iterator rows = (Iterator) given;
            while (rows.hasNext()) {
                kept.add(rows.next());
            }
        } catch (Exception error) {
            if (TaskContext.get().isInterrupted()) {
                throw error;
            }
            return Collections.singletonList(text(error)).iterator();
        }
        return kept.iterator();
    }

    /** What partitions have come to, from one on, as one array: each call from Python waits for its
        answer, and some calls for each partition cost more than their tasks. Once enough bytes are
        there the others are left for another call. Of a partition: how many items; of each, whether
        it is text, its length, and its bytes. */
    public byte[] packed(List[] partitions, int first) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(bytes);
        for (int i = first; i < partitions.length && bytes.size() < ENOUGH_BYTES; i++) {
            List kept = partitions[i];
            out.writeInt(kept.size());
            for (int j = 0; j < kept.size(); j++) {
                Object item = kept.get(j);
                boolean isText = item instanceof String;
                byte[] data = isText ? ((String) item).getBytes("UTF-8") : (byte[]) item;
                out.writeBoolean(isText);
                out.writeInt(data.length);
                out.write(data);
            }
        }
        return bytes.toByteArray();
    }

    private static String text(Throwable error) {
        StringBuilder text = new StringBuilder();
        Throwable cause = error;
        for (int i = 0; cause != null && i < MOST_CAUSES; i++) {
            text.append(i == 0 ? "" : "\nCaused by: ").append(cause);
            cause = cause.getCause();
        }
        return text.toString();
    }
}
